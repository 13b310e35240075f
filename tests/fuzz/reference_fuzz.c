/* links: oci */
/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/reference_fuzz.c - names, tags, references and media types from a request line.
 */
#include "oci/oci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What passes may become part of a path or an SQL value: no surprise among its bytes. */
static void check_alphabet(const char *s, size_t len, const char *extra)
{
    for (size_t i = 0; i < len; i++) {
        bool word = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'A' && s[i] <= 'Z');

        REQUIRE(word || (s[i] != '\0' && strchr(extra, s[i]) != NULL));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CLEANUP(free_ptr) char *text = malloc(size + 1);
    struct oci_reference ref;
    struct err err = ERR_INIT;
    int rc;

    REQUIRE(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    if (oci_name_valid(text, size)) {
        check_alphabet(text, size, "/._-");
        REQUIRE(size <= OCI_NAME_MAX_BYTES && text[0] != '/' && strstr(text, "..") == NULL);
    }
    if (oci_tag_valid(text, size))
        check_alphabet(text, size, "._-");
    rc = oci_reference_parse(text, &ref, &err);
    REQUIRE(rc == err.code);
    if (rc == 0 && ref.is_digest)
        REQUIRE(strcmp(digest_text(&ref.digest).s, text) == 0);
    else if (rc == 0)
        REQUIRE(strcmp(ref.tag, text) == 0 && oci_tag_valid(text, strlen(text)));
    if (oci_tag_is_digest_tag(text))
        REQUIRE(strlen(text) >= 71 && strchr(text, ':') != text + 6);
    (void)oci_type_name(oci_type_of(text));
    return 0;
}
