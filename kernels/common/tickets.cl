// Sharing the items of a launch among its work-items, of which each takes what it finds: those on slow or busy cores
// take less. The work-items take tickets, numbers from 0 on; the first tickets stand for many items in a row, the last
// ones for one: half of the items that are left is cut into a ticket for each work-item, again and again (factoring:
// Hummel, Schonberg and Flynn 1992).
//
// tickets   0 before a launch and after it; all of its work-items share it, and each of them takes tickets until
//           no items are left for one
// items     the number of items; workers: of work-items

typedef struct {
    int item, last;  // of the ticket's items the next one, and the last one; none are left: item is at least items
} Share;

Share take_ticket(volatile global int *tickets, const int items, const int workers) {
    const int ticket = atomic_inc(tickets);
    int first = 0, number = ticket, size;
    for (;; number -= workers) {
        size = max((items - first) / (2 * workers), 1);
        if (number < workers || size == 1) break;
        first += workers * size;
    }
    first += number * size;
    // the last one of those who find that none are left
    if (size == 1 && first == items + workers - 1) atomic_xchg(tickets, 0);
    return (Share){first, first + size - 1};
}

Share next_item(const Share share, volatile global int *tickets, const int items, const int workers) {
    if (share.item < share.last) return (Share){share.item + 1, share.last};
    return take_ticket(tickets, items, workers);
}

#define TICKETS tickets, items, workers
#define FOR_ITEMS(share) for (Share share = take_ticket(TICKETS); share.item < items; share = next_item(share, TICKETS))
