/* SPDX-License-Identifier: Apache-2.0
 * tests/lint/tidy_model.h - force-included by tidy.py, never by the build: tells clang's analyzer, which sees one file
 * at a time, that these functions always return a failure. Without it every TRY() seems to go on with unset results.
 */
#pragma once

#include "base/err.h"

#define err_set(...) ((void)err_set(__VA_ARGS__), ERR_BUG)
#define err_sys(...) ((void)err_sys(__VA_ARGS__), ERR_BUG)
#define err_wrap(...) ((void)err_wrap(__VA_ARGS__), ERR_BUG)
#define err_nomem(...) ((void)err_nomem(__VA_ARGS__), ERR_BUG)

/* A function of another file might return > 0 without having set its results, for all the analyzer knows. */
#undef TRY
#define TRY(expr)                                                                                                      \
    do {                                                                                                               \
        int try_rc_ = (expr);                                                                                          \
        if (try_rc_ != 0)                                                                                              \
            return try_rc_;                                                                                            \
    } while (0)
