/* SPDX-License-Identifier: Apache-2.0
 * store/pin.c - pins.
 */
#include "store/pin.h"

int store_pin(struct store *st UNUSED, int64_t repo UNUSED, const char *tag UNUSED, const struct digest *digest UNUSED,
              struct store_pin_result *out, struct err *err)
{
    *out = (struct store_pin_result){.changed = false};
    return err_set(err, ERR_UNSUPPORTED, "pins are not there yet");
}

int store_unpin(struct store *st UNUSED, int64_t repo UNUSED, const char *tag UNUSED,
                const struct digest *digest UNUSED, struct store_pin_result *out, struct err *err)
{
    *out = (struct store_pin_result){.changed = false};
    return err_set(err, ERR_UNSUPPORTED, "pins are not there yet");
}

int store_each_pin(struct store *st UNUSED, store_pin_fn *fn UNUSED, void *arg UNUSED, struct err *err UNUSED)
{
    return 0;
}

int store_is_pinned(struct store *st UNUSED, const struct digest *manifest UNUSED, bool *out, struct err *err UNUSED)
{
    *out = false;
    return 0;
}

int store_remove(struct store *st UNUSED, int64_t repo UNUSED, const char *tag UNUSED,
                 const struct digest *digest UNUSED, struct store_remove_result *out, struct err *err)
{
    *out = (struct store_remove_result){.unpinned = false};
    return err_set(err, ERR_UNSUPPORTED, "removal is not there yet");
}
