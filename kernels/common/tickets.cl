// Sharing the items of a launch among its work-items, of which each takes what it finds: those on slow or busy cores take
// less. The work-items take tickets, numbers from 0 on; the first tickets stand for many items in a row, the last ones for
// one: half of the items that are left is cut into a ticket for each work-item, again and again (factoring: Hummel,
// Schonberg and Flynn 1992). core/planning/tickets.py counts them.
//
// tickets   0 before a launch and after it; all of its work-items share it, and each of them takes tickets until it gets
//           one that is not below count

typedef struct {
    int item, last;  // the next item; last + 1 - item are left. Without a ticket: item is at least the number of items
} Share;

Share take_ticket(volatile global int *tickets, const int count, const int items, const int workers) {
    int ticket = atomic_inc(tickets), first = 0, size;
    if (ticket == count + workers - 1) atomic_xchg(tickets, 0);  // everyone knows that none are left
    for (;; ticket -= workers) {
        size = max((items - first) / (2 * workers), 1);
        if (ticket < workers || size == 1) break;
        first += workers * size;
    }
    return (Share){first + ticket * size, first + ticket * size + size - 1};
}
