#define _GNU_SOURCE
#include "bench/options/config_file.h"

#include "bench/output/message.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Path in the directory of shipped configs, at ROPEKIT_CONFIG_DIR from the tool's own. */
static bool locate_shipped(const char *name, const char *suffix, char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (!slash)
        return false;
    size_t left = size - (size_t)(slash - path);
    int used = snprintf(slash, left, "/" ROPEKIT_CONFIG_DIR "/%s%s", name, suffix);
    return used > 0 && (size_t)used < left && access(path, R_OK) == 0;
}

void config_file_list(FILE *file, const char *option) {
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    int count =
        locate_shipped("", "", path, sizeof path) ? scandir(path, &entries, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        const char *end = strstr(entries[i]->d_name, ".json");
        if (end && end[5] == '\0')
            fprintf(file, "--%s=%.*s\n", option, (int)(end - entries[i]->d_name),
                    entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

static bool is_shipped_name(const char *name) {
    size_t length = strlen(name);
    return !strchr(name, '/') && (length < 5 || strcmp(name + length - 5, ".json") != 0);
}

/* Largest config.json that is read. */
#define CONFIG_FILE_MOST ((size_t)1 << 20)

/* Reads a whole file; NULL after a message. */
static char *read_text(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        message("config is \"%s\": %s; allowed is a readable file or the name of a shipped config",
                path, strerror(errno));
        return NULL;
    }
    char *text = malloc(CONFIG_FILE_MOST + 1);
    *length = text ? fread(text, 1, CONFIG_FILE_MOST + 1, file) : 0;
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (text && !error && *length <= CONFIG_FILE_MOST)
        return text;
    message("config is \"%s\": %s; allowed is a readable file of at most 1 MiB", path,
            !text   ? "no memory to read it"
            : error ? strerror(error)
                    : "larger than that");
    free(text);
    return NULL;
}

rope_config *config_file_read(const char *name, const char *layer_type) {
    char path[PATH_MAX];
    if (!is_shipped_name(name) || access(name, R_OK) == 0 ||
        !locate_shipped(name, ".json", path, sizeof path))
        snprintf(path, sizeof path, "%s", name);
    size_t length;
    char *text = read_text(path, &length);
    if (!text)
        return NULL;
    rope_config *config = NULL;
    if (rope_config_parse(&config, text, length, layer_type) != ROPE_OK)
        message("%s: %s", path, rope_last_error());
    free(text);
    return config;
}

static void release_config(void *config) {
    rope_config_destroy(config);
}

static void report_ignored(const char *name, const rope_config *config) {
    char fields[512] = "";
    size_t used = 0;
    const char *field;
    for (int32_t i = 0; (field = rope_config_ignored(config, i)) && used < sizeof fields; i++)
        used += (size_t)snprintf(fields + used, sizeof fields - used, "%s%s", i ? ", " : "", field);
    if (used)
        message("%s: fields that nothing reads: %s", name, fields);
}

/* A row of MLA's cache: the latent, normalised as in Transformers, and what rotates of the key. */
static void take_latent(options *o, int32_t rank) {
    o->latent = rank;
    o->v_heads = 0;
    o->desc.k_head_dim += rank;
    o->desc.k_rotary_offset = rank;
    o->appends.k.norm = (rope_norm){.type = ROPE_NORM_RMS,
                                    .scope = ROPE_NORM_HEAD,
                                    .dim = rank,
                                    .weight = ROPE_NORM_WEIGHT,
                                    .rounding = ROPE_NORM_ROUND_TWICE,
                                    .eps = 1e-6};
}

bool config_read(options *o) {
    rope_config *config = config_file_read(o->config, o->layer_type);
    rope_model model = {.struct_size = sizeof model};
    if (!config || !pool_keep(o->pool, config, release_config) ||
        !succeeded(rope_config_finish(config, &o->desc, &model), o->config) ||
        !succeeded(rope_append_config_norm(config, &o->appends.q.norm), o->config))
        return false;
    o->appends.k.norm = o->appends.q.norm;
    if (o->append && model.kv_lora_rank)
        take_latent(o, model.kv_lora_rank);
    if (!o->allow_unread && rope_config_check(config) != ROPE_OK) {
        message("%s: %s (--allow-unread)", o->config, rope_last_error());
        return false;
    }
    report_ignored(o->config, config);
    if (rope_config_note(config))
        message("%s: %s", o->config, rope_config_note(config));
    o->dtype_is_assumed = !model.states_dtype;
    o->q_heads = model.num_attention_heads > 0 ? model.num_attention_heads : o->q_heads;
    o->k_heads = model.num_key_value_heads > 0 ? model.num_key_value_heads : o->k_heads;
    return true;
}
