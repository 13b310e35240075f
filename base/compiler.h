/* SPDX-License-Identifier: Apache-2.0
 * base/compiler.h - the GNU attributes and the few macros that all of recask uses.
 *
 * CLEANUP(fn): fn(&variable) runs when the variable leaves its scope; fn accepts a NULL or finished object.
 * steal(&p): hands an owned pointer over: yields it and leaves NULL behind, so that CLEANUP does nothing.
 * REQUIRE(cond): a programming error, checked in release builds too; never for bytes from disk or network.
 * CAST_OBJ(type, MAGIC, ptr): the way back from a void * (MHD, curl, workpool); checks the object's magic.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define CLEANUP(fn) __attribute__((cleanup(fn)))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define MUST_CHECK __attribute__((warn_unused_result))
#define UNUSED __attribute__((unused))

#define steal(pp)                                                                                                      \
    __extension__({                                                                                                    \
        __typeof__(*(pp)) stolen_ = *(pp);                                                                             \
        *(pp) = NULL;                                                                                                  \
        stolen_;                                                                                                       \
    })

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

_Noreturn void require_failed(const char *cond, const char *file, int line, const char *func);
#define REQUIRE(cond) ((cond) ? (void)0 : require_failed(#cond, __FILE__, __LINE__, __func__))

/* Every struct that crosses a void * has `uint32_t magic` as its first member. */
#define CAST_OBJ(type, want_magic, ptr)                                                                                \
    __extension__({                                                                                                    \
        type *obj_ = (ptr);                                                                                            \
        REQUIRE(obj_ != NULL && obj_->magic == (want_magic));                                                          \
        obj_;                                                                                                          \
    })

static inline void free_ptr(void *pp)
{
    void **p = pp;
    free(*p);
    *p = NULL;
}
