/* SPDX-License-Identifier: Apache-2.0
 * admin/json.h - reading the admin API's answers, for the command line, which links no JSON library of its own.
 *
 * Use: admin_json_parse -> admin_json_get, _at, _text ... -> admin_json_free(root). Every getter takes NULL and gives
 *      NULL, 0 or "" for what is not there, so that a client stands an older or newer server.
 * Ownership: values are borrowed from the root. Threads: one at a time.
 */
#pragma once

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct admin_json;

MUST_CHECK int admin_json_parse(const char *text, size_t len, struct admin_json **out, struct err *err);
void admin_json_free(struct admin_json *root);
void admin_json_cleanup(struct admin_json **root);

const struct admin_json *admin_json_get(const struct admin_json *object, const char *key);
size_t admin_json_count(const struct admin_json *array);
const struct admin_json *admin_json_at(const struct admin_json *array, size_t i);
const char *admin_json_text(const struct admin_json *object, const char *key); /* "" when there is no such string */
uint64_t admin_json_number(const struct admin_json *object, const char *key);
bool admin_json_true(const struct admin_json *object, const char *key);
bool admin_json_has(const struct admin_json *object, const char *key); /* there, and not null */
