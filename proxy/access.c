/* SPDX-License-Identifier: Apache-2.0
 *
 * Stand-in until the real one is here: refuses to start.
 */
#include "proxy/access.h"

int access_new(const struct access_options *opt, struct access **out, struct err *err)
{
    *out = NULL;
    return err_set(err, ERR_UNSUPPORTED, "%s: passwords are not supported yet", opt->htpasswd);
}

void access_free(struct access *a UNUSED)
{
}

enum access_verdict access_check(struct access *a UNUSED, const char *authorization UNUSED, const char *upstream UNUSED,
                                 const char *name UNUSED, char out_user[ACCESS_USER_MAX_BYTES + 1])
{
    out_user[0] = '\0';
    return ACCESS_UNKNOWN;
}
