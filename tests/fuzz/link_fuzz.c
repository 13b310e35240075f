/* links: proxy */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/link_fuzz.c - an upstream's Link: what is taken of it can stand in a header of ours, in the same place, and means
 * the same when it is read again.
 */
#include "proxy/link.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(buf_release) struct buf query = BUF_INIT(1 << 20);
    CLEANUP(buf_release) struct buf again = BUF_INIT(1 << 20);
    CLEANUP(free_ptr) char *text = malloc(size + 1);
    CLEANUP(free_ptr) char *ours = NULL;
    struct err err = ERR_INIT;

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (!link_next_query(text, &query))
        return 0;
    REQUIRE(query.len > 0 && strlen(query.data) == query.len);
    for (size_t i = 0; i < query.len; i++)
        REQUIRE(query.data[i] > ' ' && query.data[i] < 0x7f && !strchr("<>\"#", query.data[i]));
    REQUIRE(strncmp(query.data, "ns=", 3) != 0 && strstr(query.data, "&ns=") == NULL);
    REQUIRE(str_printf(&ours, &err, "</v2/a/tags/list?%s>; rel=\"next\"", query.data) == 0);
    REQUIRE(link_next_query(ours, &again) && strcmp(again.data, query.data) == 0);
    return 0;
}
