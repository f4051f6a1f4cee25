/* What optimizers compute, for one type of numbers; update.c includes this file once for each, with
 *
 *   REAL        the type
 *   NAMED(x)    a function's name for the type
 *   ROOT(x)     its square root
 *
 * The operations and their order are those of MXNet's kernels, and none are contracted (build.py), so that results have
 * MXNet's bits. w: weights, g: their gradients. All loops are elementwise: bits do not depend
 * on who computes which part.
 */

/* Before a loop: the numbers that are the same for all elements, as MXNet's kernels round them. */
typedef struct NAMED(numbers) {
    REAL lr, wd, momentum, epsilon, beta2;
    REAL scale, bound, after; /* a gradient becomes after * clip(scale * g, bound) */
} NAMED(numbers);

static inline REAL NAMED(clip)(REAL x, REAL bound) { return x > bound ? bound : x < -bound ? -bound : x; }

static NAMED(numbers) NAMED(numbers_of)(const clg_mx_rule *rule, const clg_mx_parameter *p) {
    NAMED(numbers)
    n = {.lr = p->lr,
         .wd = p->wd,
         .momentum = rule->momentum,
         .epsilon = rule->epsilon,
         .beta2 = rule->beta2,
         .scale = rule->rescale,
         .bound = rule->clip,
         .after = 1};
    bool clips = rule->clip >= 0;
    if (!clips) n.bound = (REAL)INFINITY; /* changes nothing */
    if (rule->kind == CLG_MX_SGD || rule->kind == CLG_MX_SGD_MOMENTUM || rule->kind == CLG_MX_DECAY) {
        if (clips)
            n.after = n.lr;
        else
            n.scale = n.lr * n.scale;
    }
    return n;
}

static void NAMED(sgd)(const NAMED(numbers) n, REAL *restrict w, const REAL *restrict g, size_t count) {
    const REAL decay = n.lr * n.wd;
    for (size_t i = 0; i < count; i++)
        w[i] = w[i] + ((REAL)0 - decay * w[i] - n.after * NAMED(clip)(n.scale * g[i], n.bound));
}

static void NAMED(sgd_momentum)(const NAMED(numbers) n, REAL *restrict w, const REAL *restrict g, REAL *restrict m,
                                size_t count) {
    const REAL decay = n.lr * n.wd;
    for (size_t i = 0; i < count; i++) {
        m[i] = n.momentum * m[i] - decay * w[i] - n.after * NAMED(clip)(n.scale * g[i], n.bound);
        w[i] = w[i] + m[i];
    }
}

/* MXNet's NAG without momentum. */
static void NAMED(decay)(const NAMED(numbers) n, REAL *restrict w, const REAL *restrict g, size_t count) {
    const REAL keep = 1 - n.lr * n.wd;
    for (size_t i = 0; i < count; i++) w[i] = keep * w[i] - n.after * NAMED(clip)(n.scale * g[i], n.bound);
}

/* MXNet's momentum uses the weight after its update. */
static void NAMED(nag)(const NAMED(numbers) n, REAL *restrict w, const REAL *restrict g, REAL *restrict m,
                       size_t count) {
    const REAL ahead = n.momentum + 1;
    for (size_t i = 0; i < count; i++) {
        REAL gradient = NAMED(clip)(n.scale * g[i], n.bound), kept = n.momentum * m[i];
        w[i] = w[i] - kept + ahead * (kept - n.lr * (gradient + n.wd * w[i]));
        m[i] = kept - n.lr * (gradient + n.wd * w[i]);
    }
}

/* m, v: running means of gradients and of their squares; momentum is beta1. */
static void NAMED(adam)(const NAMED(numbers) n, REAL *restrict w, const REAL *restrict g, REAL *restrict m,
                        REAL *restrict v, size_t count) {
    const REAL new1 = 1 - n.momentum, new2 = 1 - n.beta2;
    for (size_t i = 0; i < count; i++) {
        REAL gradient = NAMED(clip)(g[i] * n.scale + w[i] * n.wd, n.bound);
        m[i] = n.momentum * m[i] + new1 * gradient;
        v[i] = n.beta2 * v[i] + new2 * gradient * gradient;
        w[i] = w[i] - n.lr * m[i] / (ROOT(v[i]) + n.epsilon);
    }
}

static void NAMED(update)(const clg_mx_rule *rule, const clg_mx_parameter *p, REAL *w, const REAL *g, REAL *m, REAL *v,
                          size_t count) {
    const NAMED(numbers) n = NAMED(numbers_of)(rule, p);
    switch (rule->kind) {
    case CLG_MX_SGD: NAMED(sgd)(n, w, g, count); break;
    case CLG_MX_SGD_MOMENTUM: NAMED(sgd_momentum)(n, w, g, m, count); break;
    case CLG_MX_DECAY: NAMED(decay)(n, w, g, count); break;
    case CLG_MX_NAG: NAMED(nag)(n, w, g, m, count); break;
    case CLG_MX_ADAM: NAMED(adam)(n, w, g, m, v, count); break;
    }
}

#undef REAL
#undef NAMED
#undef ROOT
