#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# sharing.sh - two images with nearly the same files, and no layer in common, share chunks.
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
sandbox
upstream_start

recask_fresh
for image in share-a share-b; do
    check "img/$image fetched" fetch_image "http://$proxy" "img/$image" latest "$work/$image"
    wait_jobs
done
canonical=$(stat_of .store.canonical_bytes)
unique=$(stat_of .store.unique_chunk_bytes)
echo "# canonical $canonical, unique chunks $unique"
want=$(cat "$work"/share-[ab]/sha256:* 2>/dev/null | gzip -dcq 2>/dev/null | wc -c)
at_least "both layers are canonical" "$canonical" $((want * 99 / 100))
at_most "unique chunks are 60 % of them at most" "$unique" $((canonical * 60 / 100))
finish
