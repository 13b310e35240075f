/* SPDX-License-Identifier: Apache-2.0
 * oci/client.h - what is known of the software that asks: which view it can take, and which is best for it.
 *
 * One table, keyed by User-Agent and version, a test per row. Only what clients were seen to take with real pulls
 * stands in it; everybody else gets the original. Threads: pure.
 */
#pragma once

#include "oci/rewrite.h"

enum oci_link { LINK_LAN = 0, LINK_WAN }; /* lan: least CPU; wan: fewest bytes */

struct oci_client {
    const char *name; /* static, for people: "docker", "docker-containerd" (its containerd store) ... "unknown" */
    unsigned major, minor, patch;
    bool takes_canonical;     /* may be given a rewritten view at all */
    bool takes_zstd;          /* reads +zstd layers in an OCI manifest */
    bool reads_zstd_original; /* false: an original with zstd layers is useless to it (docker < 23) */
    enum oci_view best_lan, best_wan;
};

/* user_agent NULL or unknown: name "unknown", original only, reads_zstd_original true. */
void oci_client_identify(const char *user_agent, struct oci_client *out);

/* The view that a tag resolves to for this client, when `wanted` was asked for. wanted_set false means auto.
 * Falls back towards original where the client or its Accept header cannot take a view:
 *   - accepts_oci false (its Accept lacks the OCI type that the zstd view needs): canonical instead of zstd
 *   - reads_zstd_original false (known to fail on zstd layers): canonical instead of zstd
 * An explicit wish (Recask-View, listener or configuration) is obeyed for unknown clients too. */
enum oci_view oci_choose_view(const struct oci_client *client, bool wanted_set, enum oci_view wanted,
                              enum oci_link link, bool accepts_oci);
