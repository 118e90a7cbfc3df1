#include "bench/suites.h"

#include "bench/message.h"

#include <string.h>

/* Every combination of tokens and dtypes over the settings. */
typedef struct suite_row {
    const char *suite, *settings, *tokens, *dtypes;
    bool gpu_only;
} suite_row;

#define LLAMA "--q-heads=32 --k-heads=8 --head-dim=128 "
#define ALL16 "f32 bf16 f16"
#define RULE(settings)                                                                             \
    { "rules", LLAMA "--cache=cold " settings, "4096", "bf16", false }
#define FACTORS8 "1,1.05,1.1,1.25,1.5,2,4,8"
#define FACTORS64                                                                                  \
    FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8         \
             "," FACTORS8

static const suite_row rows[] = {
    {"decode", LLAMA "--cache=warm", "1 8 64 256", ALL16, false},
    {"prefill", LLAMA "--cache=cold", "16 128 1024 2048 4096 16384", ALL16, false},
    {"prefill", LLAMA "--cache=cold", "131072", "bf16", true},
    {"single-head", "--q-heads=1 --k-heads=0 --head-dim=128 --cache=cold", "63488", ALL16, false},
    {"tokens", LLAMA "--cache=warm", "1 2 4 8 16 32 64 128 256 512 1024 2048", "bf16", false},
    {"interleaved", LLAMA "--pairing-in=interleaved --cache=warm", "1 64", ALL16, false},
    {"interleaved",
     "--q-heads=8 --k-heads=8 --head-dim=64 --batch=4 --pairing-in=interleaved --cache=cold",
     "2048", ALL16, false},
    {"interleaved",
     "--q-heads=128 --k-heads=1 --head-dim=192 --rotary-dim=64 --rotary-offset=128 --k-head-dim=64 "
     "--pairing-in=interleaved --pairing-out=half-split --cache=cold",
     "512", "bf16", false},
    {"large", "--q-heads=128 --k-heads=0 --head-dim=128 --cache=cold", "8192", "f32", false},
    {"backward", LLAMA "--batch=4 --direction=transpose --cache=cold", "4096", "f32 bf16", false},
    {"in-place", LLAMA "--in-place --cache=cold", "16 2048 16384", ALL16, false},
    {"in-place", LLAMA "--in-place --rotary-dim=64 --cache=cold", "8192", "bf16", false},
    RULE("--rope-type=default"),
    RULE("--rope-type=linear --factor=4"),
    RULE("--rope-type=dynamic --factor=4 --max-position-embeddings=8192 --sequence-length=16384"),
    RULE("--rope-type=yarn --factor=4 --original-max-position-embeddings=8192"),
    RULE("--rope-type=longrope --factor=4 --original-max-position-embeddings=2048 "
         "--short-factor=" FACTORS64 " --long-factor=" FACTORS64),
    RULE("--rope-type=llama3 --factor=8 --low-freq-factor=1 --high-freq-factor=4 "
         "--original-max-position-embeddings=8192"),
    RULE("--rope-type=proportional --partial-rotary-factor=0.25"),
    RULE("--xpos-scale-base=512"),
    RULE("--axes=3 --axis-layout=chunked --sections=16,24,24 --position-ids=sequential"),
    RULE("--position-ids=random"),
    RULE("--angle-mode=f32"),
    RULE("--angle-mode=table"),
    RULE("--angle-mode=table --table-dtype=bf16 --arithmetic=model-dtype"),
    {"overhead", "--q-heads=1 --k-heads=0 --head-dim=64 --cache=warm", "1", "f32 bf16", false},
    {"overhead", LLAMA "--cache=warm", "1", "f32 bf16", false},
};
#define ROWS (sizeof rows / sizeof rows[0])

static bool add_case(const suite_row *row, const char *tokens, const char *dtype,
                     const options *base, bench_case *added) {
    size_t size = strlen(row->settings) + strlen(tokens) + strlen(dtype) + 24;
    char *settings = pool_alloc(base->pool, size, 1);
    if (!settings)
        return false;
    snprintf(settings, size, "--tokens=%s --dtype=%s %s", tokens, dtype, row->settings);
    *added = (bench_case){settings, *base};
    return options_apply(&added->o, settings);
}

/* The next word of a list; false at its end. */
static bool next_word(const char **list, char *word, size_t size) {
    size_t length = strcspn(*list, " ");
    snprintf(word, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ' ');
    return length > 0;
}

static bool expand_row(const suite_row *row, const options *base, bench_case *cases,
                       int32_t *count) {
    char tokens[16], dtype[16];
    const char *token_list = row->tokens;
    while (next_word(&token_list, tokens, sizeof tokens)) {
        const char *dtype_list = row->dtypes;
        while (next_word(&dtype_list, dtype, sizeof dtype) && *count < SUITE_CASES_MOST)
            if (!add_case(row, tokens, dtype, base, &cases[(*count)++]))
                return false;
    }
    return true;
}

static void refuse_name(const char *name) {
    char names[256];
    size_t used = 0;
    for (size_t i = 0; i < ROWS && used < sizeof names; i++)
        if (i == 0 || strcmp(rows[i].suite, rows[i - 1].suite) != 0)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s, ", rows[i].suite);
    message("--suite is \"%.60s\"; allowed is %sall", name, names);
}

int32_t suite_expand(const char *name, const options *base, bool gpu, bench_case *cases) {
    int32_t count = 0;
    for (size_t i = 0; i < ROWS; i++)
        if ((strcmp(name, rows[i].suite) == 0 || strcmp(name, "all") == 0) &&
            (gpu || !rows[i].gpu_only) && !expand_row(&rows[i], base, cases, &count))
            return -1;
    if (count > 0)
        return count;
    refuse_name(name);
    return -1;
}
