#include "bench/measure/suites.h"

#include "bench/output/message.h"

#include <string.h>

static const char *const suites[] = {
    "prefill",    "decode",   "single-head", "large",     "in-place",           "heads",
    "rules",      "overhead", "append",      "attention", "attention-backward", "attention-decode",
    SUITE_TUNING, "all",
};
#define SUITES ((int32_t)(sizeof suites / sizeof suites[0]))

/* A quick run takes every third number of tokens and the first dtype. */
#define QUICK_STEP 3

/* Every combination of sizes and dtypes over the settings, and on a GPU of further sizes and the
 * first dtype. A size is tokens, or as in "2x512" batch rows and tokens of each. */
typedef struct suite_row {
    const char *suite, *label, *settings;
    const char *sizes, *dtypes, *gpu_sizes;
} suite_row;

#define LLAMA " --rope-theta=500000"
#define QWEN " --q-heads=64 --rope-theta=1000000"
/* The rotary slice of q's heads, in place, and the key that all heads share. */
#define MLA                                                                                        \
    " --in-place --q-heads=128 --k-heads=1 --head-dim=192 --rotary-dim=64 --rotary-offset=128 "    \
    "--k-head-dim=64 --pairing-in=interleaved"
/* As many bytes as the windows of MLA, side by side. */
#define MLA_CONTIGUOUS                                                                             \
    " --in-place --q-heads=128 --k-heads=1 --head-dim=64 --pairing-in=interleaved"
/* Qwen3's norms of q and k. */
#define RMS(part)                                                                                  \
    " --" part "-norm-type=rms --" part "-norm-weight=weight --" part                              \
    "-norm-rounding=twice --" part "-norm-eps=1e-6"
#define QWEN3_8B " --rope-theta=1000000" RMS("q") RMS("k")
#define FP8 " --k-store-dtype=f8e4m3 --v-store-dtype=f8e4m3 --k-scale=tensor --v-scale=tensor"
/* Into f16, as llama.cpp does on a CPU. */
#define TO_F16 " --k-store-dtype=f16 --v-store-dtype=f16"
/* The latent, normalised, and the rotated part of the key in one row of a page. */
#define MLA_ROW                                                                                    \
    " --in-place --q-heads=128 --k-heads=1 --v-heads=0 --head-dim=192 --rotary-dim=64 "            \
    "--rotary-offset=128 --k-head-dim=576 --k-rotary-offset=512 --pairing-in=interleaved "         \
    "--pairing-out=half-split --k-norm-dim=512" RMS("k")
/* A context of 128K tokens is shifted. */
#define MOVED " --q-heads=0 --k-source=cache --position-offset=-256"
/* Heads of DeepSeek-V3, keys and values projected. */
#define MLA_HEADS                                                                                  \
    " --q-heads=128 --k-heads=128 --head-dim=192 --rotary-dim=64 --rotary-offset=128 "             \
    "--v-head-dim=128"
/* Queries of DeepSeek-V3, which absorb the projection of keys and values, over these rows. */
#define MLA_ABSORBED                                                                               \
    " --q-heads=128 --k-heads=1 --head-dim=576 --v-head-dim=512 --rotary-dim=64 "                  \
    "--rotary-offset=512 --v-in-k"
#define ONE_HEAD " --q-heads=1 --k-heads=0"
#define HEADS32_32 " --k-heads=32"
#define HEADS64_8 " --q-heads=64"
#define PAGED " --kv-cache=table --keys="
#define COLD " --cache=cold"
/* One new token of each sequence, at a position of its own, as engines pack them. */
#define STEP " --position-ids=random"
#define STEPS "1 8 64 256"
#define THREE "bf16 f32 f16"
#define TWO "bf16 f32"
#define PROMPTS "1 16 128 1024 2048 4096 8192 16384"
#define LONG_PROMPTS "32768 65536 131072"
#define FACTORS8 "1,1.05,1.1,1.25,1.5,2,4,8"
#define FACTORS64                                                                                  \
    FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8         \
             "," FACTORS8
#define PACKED " --cu-seqlens=0,128,640,1664,2048"
#define PACKED_LONG " --cu-seqlens=0,512,1536,3584,7680,16384"
/* Prompts of attention: a CPU takes seconds for the largest of its own. */
#define ROWS_CPU "1x128 1x512 1x1024 1x2048"
#define ROWS_GPU                                                                                   \
    "1x4096 32x512 16x1024 8x2048 4x4096 2x8192 1x8192 1x16384 1x32768 1x65536 1x131072"
#define ROWS_WIDE "1x512 1x2048 8x2048 1x8192 1x32768"
#define ROWS_TUNED                                                                                 \
    "1x2048 1x4096 32x512 16x1024 8x2048 4x4096 1x8192 2x8192 1x16384 1x32768 1x131072"

#define ROPE(suite, label, settings, sizes, dtypes, gpu_sizes)                                     \
    { suite, label, settings, sizes, dtypes, gpu_sizes }
/* Heads of other sizes than 128, and parts of heads: a step of some sequences, and a prompt. */
#define HEADS(label, settings)                                                                     \
    ROPE("heads", label, settings, "8", TWO, ""),                                                  \
        ROPE("heads", label, settings COLD, "4096", TWO, "")
#define RULE(label, settings) ROPE("rules", label, settings COLD, "4096", "bf16", "")
#define APPEND(label, settings, sizes, dtypes)                                                     \
    { "append", label, "--append --kv-cache=slots" settings, sizes, dtypes, "" }
#define APPENDED(label, settings)                                                                  \
    APPEND(label, settings COLD, "1 2048 4096 16384", "bf16"),                                     \
        APPEND(label ", decode", settings STEP, STEPS, "bf16")
#define ATTENTION(label, settings, sizes, dtypes, gpu_sizes)                                       \
    { "attention", label, "--attention --cache=cold" settings, sizes, dtypes, gpu_sizes }
#define DECODE(label, keys, sizes, gpu_sizes)                                                      \
    {                                                                                              \
        "attention-decode", label, "--attention --decode --cache=cold" PAGED keys, sizes, "bf16",  \
            gpu_sizes                                                                              \
    }
#define GRADIENT(label, settings, sizes, dtypes, gpu_sizes)                                        \
    {                                                                                              \
        "attention-backward", label, "--attention --backward --cache=cold" settings, sizes,        \
            dtypes, gpu_sizes                                                                      \
    }
#define BOTH(label, settings, sizes, dtypes, gpu_sizes)                                            \
    ATTENTION(label, settings, sizes, dtypes, gpu_sizes),                                          \
        GRADIENT(label, settings, sizes, dtypes, gpu_sizes)
#define TUNED(label, settings, sizes, dtypes, gpu_sizes)                                           \
    { SUITE_TUNING, label, "--attention --cache=cold" settings, sizes, dtypes, gpu_sizes }
/* With the backward, also by kernels that sum in no fixed order. */
#define TUNED_BOTH(label, settings, sizes, gpu_sizes)                                              \
    TUNED(label, settings, sizes, TWO, gpu_sizes),                                                 \
        TUNED(label, " --backward" settings, sizes, TWO, gpu_sizes),                               \
        TUNED(label, " --backward --nondeterministic" settings, sizes, "bf16", gpu_sizes)
#define TUNED_PROMPTS(label, settings) TUNED_BOTH(label, settings, "1x128 1x512 1x1024", ROWS_TUNED)
#define TUNED_FEW(label, settings) TUNED_BOTH(label, settings, "1x128 1x1024", ROWS_WIDE)

static const suite_row rows[] = {
    ROPE("prefill", "Llama-3-8B", LLAMA COLD, PROMPTS, "bf16", LONG_PROMPTS),
    ROPE("prefill", "Llama-3-8B", LLAMA COLD, "16 128 2048 16384", "f32 f16", ""),
    ROPE("prefill", "Qwen3-32B", QWEN COLD, PROMPTS, "bf16", LONG_PROMPTS),
    ROPE("prefill", "DeepSeek MLA", MLA COLD, PROMPTS, "bf16", LONG_PROMPTS),
    ROPE("prefill", "DeepSeek MLA, contiguous", MLA_CONTIGUOUS COLD, "", "bf16", "8192 32768"),
    ROPE("decode", "Llama-3-8B", LLAMA STEP, STEPS, THREE, ""),
    ROPE("decode", "Qwen3-32B", QWEN STEP, STEPS, "bf16", ""),
    ROPE("decode", "DeepSeek MLA", MLA STEP, STEPS, "bf16", ""),
    ROPE("decode", "Llama-3-8B, programmatic", LLAMA STEP " --launch=programmatic", "", "bf16",
         STEPS),
    ROPE("single-head", "", ONE_HEAD, "512 1024 2048 4096", "f32", ""),
    ROPE("single-head", "", ONE_HEAD COLD, "512 1024 2048 4096 16384 63488", "f32", ""),
    ROPE("single-head", "", ONE_HEAD " --head-dim=256", "512 1024 2048 4096", "f32", ""),
    ROPE("single-head", "", ONE_HEAD " --head-dim=256" COLD, "512 1024 2048 4096", "f32", ""),
    ROPE("large", "", " --q-heads=128 --k-heads=0" COLD, "8192", "f32", ""),
    ROPE("in-place", "whole", " --in-place" LLAMA COLD, "16 2048 16384", THREE,
         "8192 32768 131072"),
    ROPE("in-place", "half", " --in-place --rotary-dim=64" LLAMA COLD, "8192", "bf16", ""),
    HEADS("gpt-oss", " --q-heads=64 --head-dim=64"),
    HEADS("Qwen2-VL vision", " --q-heads=16 --k-heads=16 --head-dim=80"),
    HEADS("Phi-3.5-mini", " --k-heads=32 --head-dim=96"),
    HEADS("Gemma-3-4B", " --q-heads=8 --k-heads=4 --head-dim=256"),
    HEADS("GPT-J-6B",
          " --q-heads=16 --k-heads=16 --head-dim=256 --rotary-dim=64 --pairing-in=interleaved"),
    HEADS("GPT-NeoX-20B", " --q-heads=64 --k-heads=64 --head-dim=96 --rotary-dim=24"),
    HEADS("8 heads of 64, interleaved",
          " --q-heads=8 --head-dim=64 --pairing-in=interleaved --batch=4"),
    RULE("default", ""),
    RULE("linear", " --rope-type=linear --factor=4"),
    RULE("dynamic", " --rope-type=dynamic --factor=4 --max-position-embeddings=8192 "
                    "--sequence-length=16384"),
    RULE("yarn", " --rope-type=yarn --factor=4 --original-max-position-embeddings=8192"),
    RULE("longrope", " --rope-type=longrope --factor=4 --original-max-position-embeddings=2048 "
                     "--short-factor=" FACTORS64 " --long-factor=" FACTORS64),
    RULE("llama3", " --rope-type=llama3 --factor=8 --low-freq-factor=1 --high-freq-factor=4 "
                   "--original-max-position-embeddings=8192"),
    RULE("proportional", " --rope-type=proportional --partial-rotary-factor=0.25"),
    RULE("interleaved pairs", " --pairing-in=interleaved"),
    RULE("mixed pairing", " --pairing-in=interleaved --pairing-out=half-split"),
    RULE("transpose", " --direction=transpose"),
    RULE("xpos", " --xpos-scale-base=512"),
    RULE("three axes", " --axes=3 --axis-layout=chunked --sections=16,24,24 "
                       "--position-ids=sequential"),
    RULE("random ids", STEP),
    RULE("f32 angles", " --angle-mode=f32"),
    RULE("f32 tables", " --angle-mode=table"),
    RULE("bf16 tables, model dtype",
         " --angle-mode=table --table-dtype=bf16 --arithmetic=model-dtype"),
    ROPE("overhead", "1", ONE_HEAD " --head-dim=64", "1", TWO, ""),
    ROPE("overhead", "32 + 8", LLAMA, "1", THREE, ""),
    APPENDED("Llama-3-8B", LLAMA),
    APPENDED("Qwen3-8B", QWEN3_8B),
    APPENDED("Qwen3-8B, fp8", QWEN3_8B FP8),
    APPENDED("DeepSeek-V3 MLA", MLA_ROW),
    APPEND("Llama-3-8B, fp8", LLAMA FP8 COLD, "1 2048 4096 16384", "bf16"),
    APPEND("Llama-3-8B, f32 to f16", LLAMA TO_F16 COLD, "1 2048", "f32"),
    APPEND("Qwen3-8B, f32 to f16", QWEN3_8B TO_F16 COLD, "1 2048", "f32"),
    APPEND("keys moved", MOVED COLD, "131072", "bf16"),
    APPEND("keys moved, fp8", MOVED " --k-store-dtype=f8e4m3 --k-scale=tensor" COLD, "131072",
           "bf16"),
    BOTH("32/32 heads", HEADS32_32, ROWS_CPU, TWO, ROWS_GPU),
    BOTH("32/8 heads", "", ROWS_CPU, TWO, ROWS_GPU),
    BOTH("64/8 heads", HEADS64_8, "1x128 1x512", TWO, "1x1024 1x2048 " ROWS_GPU),
    BOTH("32/32 heads", HEADS32_32 " --head-dim=64", "1x128 1x512 1x1024", TWO, "1x2048 " ROWS_GPU),
    BOTH("32/8 heads", " --head-dim=64", "", "bf16", "1x2048 4x4096"),
    BOTH("32/8 heads", " --head-dim=256", "", "bf16", ROWS_WIDE),
    ATTENTION("28/4 heads", " --q-heads=28 --k-heads=4", "", "bf16",
              "1x1024 16x1024 4x4096 1x16384"),
    ATTENTION("32/8 heads, rotated before", " --rotate=none", "1x128", "bf16",
              "1x1024 1x4096 16x1024 8x2048 4x4096 2x8192 1x16384"),
    ATTENTION("all keys", " --mask=full", "1x128", "bf16", "1x1024 16x1024 4x4096 1x16384"),
    BOTH("window 1K", " --window=1024", "1x2048", TWO, ""),
    BOTH("window 4K", " --window=4096", "", "bf16", "1x8192 1x16384 1x32768 1x131072"),
    BOTH("packed", PACKED, "2048", TWO, ""),
    BOTH("packed", PACKED_LONG, "", "bf16", "16384"),
    GRADIENT("4/1 heads", " --q-heads=4 --k-heads=1", "1x4096", TWO, ""),
    GRADIENT("32/8 heads, any order", " --nondeterministic", "", "bf16",
             "1x512 1x1024 1x2048 8x2048 1x8192 2x8192 1x32768 1x131072"),
    GRADIENT("32/8 heads, rotated before", " --rotate=none", "1x128", "bf16",
             "8x2048 4x4096 2x8192 1x16384"),
    ATTENTION("chunk of a prompt, 4K keys", PAGED "4096", "1x256", TWO, "1x64 16x64 8x256"),
    ATTENTION("chunk of a prompt, 32K keys", PAGED "32768", "", "bf16", "1x64 1x256 1x2048 4x2048"),
    ATTENTION("decode, 1K keys", PAGED "1024", "1x1 8x1 32x1", TWO, "64x1 128x1"),
    ATTENTION("decode, 2000 keys", PAGED "2000", "", "bf16", "128x1"),
    ATTENTION("decode, 3000 keys", PAGED "3000", "", "bf16", "1x1 16x1"),
    ATTENTION("decode, 8K keys", PAGED "8192", "1x1 8x1", TWO, "32x1 64x1 128x1"),
    ATTENTION("decode, 32K keys", PAGED "32768", "1x1", TWO, "8x1 32x1 64x1 128x1"),
    ATTENTION("decode, 128K keys", PAGED "131072", "1x1", TWO, "8x1 16x1"),
    ATTENTION("decode, window 4K, 32K keys", " --window=4096" PAGED "32768", "1x1 8x1", "bf16", ""),
    ATTENTION("MLA decode, 8K keys", MLA_ABSORBED PAGED "8192", "", "bf16", "1x1 8x1 64x1"),
    ATTENTION("MLA decode, 32K keys", MLA_ABSORBED PAGED "32768", "", "bf16", "1x1 8x1 32x1"),
    DECODE("1K keys", "1024", "1x1 8x1", "4x1 32x1 64x1 128x1 256x1"),
    DECODE("8K keys", "8192", "1x1", "4x1 8x1 32x1 64x1 128x1 256x1"),
    DECODE("32K keys", "32768", "", "1x1 4x1 8x1 32x1 64x1"),
    DECODE("128K keys", "131072", "", "1x1 4x1 8x1 16x1"),
    DECODE("700 keys", "700", "", "64x1"),
    DECODE("2000 keys", "2000", "", "128x1"),
    DECODE("3000 keys", "3000", "", "1x1 16x1"),
    DECODE("20000 keys", "20000", "", "1x1"),
    DECODE("28/4 heads, 5000 keys", "5000 --q-heads=28 --k-heads=4", "", "4x1"),
    DECODE("heads of 64, 1K keys", "1024 --head-dim=64" HEADS64_8, "1x1", "8x1 64x1 256x1"),
    DECODE("heads of 64, 8K keys", "8192 --head-dim=64" HEADS64_8, "", "1x1 8x1 64x1"),
    DECODE("heads of 64, 32K keys", "32768 --head-dim=64" HEADS64_8, "", "1x1 8x1 32x1"),
    DECODE("fp8, 1K keys", "1024" FP8, "1x1", "8x1 64x1 256x1"),
    DECODE("fp8, 8K keys", "8192" FP8, "", "1x1 8x1 64x1"),
    DECODE("fp8, 128K keys", "131072" FP8, "", "1x1 8x1"),
    DECODE("fp8, heads of 64, 8K keys", "8192 --head-dim=64" HEADS64_8 FP8, "", "1x1 8x1 64x1"),
    DECODE("MLA, 1K keys", "1024" MLA_ABSORBED, "1x1", "8x1 64x1 256x1"),
    DECODE("MLA, 8K keys", "8192" MLA_ABSORBED, "", "1x1 8x1 64x1"),
    DECODE("MLA, 32K keys", "32768" MLA_ABSORBED, "", "1x1 8x1 32x1"),
    DECODE("MLA, 128K keys", "131072" MLA_ABSORBED, "", "1x1 4x1"),
    DECODE("MLA, fp8, 1K keys", "1024" MLA_ABSORBED FP8, "1x1", "64x1"),
    DECODE("MLA, fp8, 8K keys", "8192" MLA_ABSORBED FP8, "", "1x1 8x1 64x1"),
    DECODE("8K keys, 4 tokens", "8192", "1x4", "8x4 64x4"),
    TUNED_PROMPTS("32/32 heads", HEADS32_32),
    TUNED_PROMPTS("32/8 heads", ""),
    TUNED_PROMPTS("64/8 heads", HEADS64_8),
    TUNED_PROMPTS("32/32 heads", HEADS32_32 " --head-dim=64"),
    TUNED_PROMPTS("32/8 heads", " --head-dim=64"),
    TUNED_PROMPTS("64/8 heads", HEADS64_8 " --head-dim=64"),
    TUNED_FEW("32/32 heads", HEADS32_32 " --head-dim=96"),
    TUNED_FEW("32/32 heads", HEADS32_32 " --head-dim=256"),
    TUNED_FEW("32/8 heads", " --head-dim=256"),
    TUNED_FEW("64/8 heads", HEADS64_8 " --head-dim=256"),
    TUNED_BOTH("4/1 heads", " --q-heads=4 --k-heads=1", "1x128 1x1024", ""),
    TUNED_BOTH("all keys", HEADS32_32 " --mask=full --head-dim=64", "1x1024", "16x1024 4x4096"),
    TUNED_BOTH("all keys", " --mask=full", "1x1024", "16x1024 4x4096"),
    TUNED_BOTH("window 128", HEADS64_8 " --window=128 --head-dim=64", "1x1024", "1x4096 1x16384"),
    TUNED_BOTH("window 1K", " --window=1024", "1x2048", ""),
    TUNED_BOTH("window 1K", " --window=1024 --head-dim=256", "", "1x4096 1x16384"),
    TUNED_BOTH("window 4K", " --window=4096", "", "1x8192 1x16384 1x32768 1x131072"),
    TUNED_BOTH("packed", PACKED, "2048", ""),
    TUNED_BOTH("packed", PACKED_LONG, "", "16384"),
    TUNED_BOTH("packed", HEADS32_32 " --head-dim=64" PACKED_LONG, "", "16384"),
    TUNED_BOTH("MLA", MLA_HEADS, "", "1x512 1x2048 1x4096 4x4096 1x16384"),
    TUNED("chunk, 4K keys", PAGED "4096", "1x256", TWO, "8x256"),
    TUNED("chunk, 32K keys", PAGED "32768", "1x16", TWO, "1x2048"),
    TUNED("decode, 1K keys", PAGED "1024", "1x1 8x1", TWO, "64x1"),
    TUNED("decode, 8K keys", PAGED "8192", "1x1 8x1", TWO, "64x1"),
    TUNED("decode, 32K keys", PAGED "32768", "1x1", TWO, "8x1 64x1"),
    TUNED("decode, 128K keys", PAGED "131072", "1x1", TWO, "8x1"),
    TUNED("decode, window 4K, 32K keys", " --window=4096" PAGED "32768", "1x1 8x1", TWO, "64x1"),
    TUNED("decode, 8K keys", HEADS64_8 " --head-dim=64" PAGED "8192", "1x1", TWO, "8x1 64x1"),
    TUNED("decode, 8K keys", HEADS32_32 " --head-dim=96" PAGED "8192", "", "bf16", "1x1 8x1 64x1"),
    TUNED("decode, 8K keys", " --head-dim=256" PAGED "8192", "", "bf16", "1x1 8x1 64x1"),
    TUNED("decode, 32K keys", " --head-dim=256" PAGED "32768", "", "bf16", "1x1 8x1"),
    TUNED("decode, MLA, 8K keys", MLA_HEADS PAGED "8192", "", "bf16", "1x1 8x1"),
    TUNED("decode, padded, 1K keys", " --kv-cache=sequence --keys=1024", "1x1 8x1", TWO, "64x1"),
    TUNED("decode, padded, 8K keys", " --kv-cache=sequence --keys=8192", "1x1 8x1", TWO, "64x1"),
    TUNED("decode, padded, 32K keys", " --kv-cache=sequence --keys=32768", "1x1", TWO, "8x1"),
};
#define ROWS (sizeof rows / sizeof rows[0])

static bool add_case(const suite_row *row, const char *size, const char *dtype, const options *base,
                     options *added) {
    char settings[1024];
    const int batch = (int)(strcspn(size, "x") % strlen(size));
    snprintf(settings, sizeof settings, "%s%.*s%s--tokens=%s --dtype=%s %s",
             batch ? "--batch=" : "", batch, size, batch ? " " : "", size + batch + (batch > 0),
             dtype, row->settings);
    *added = *base;
    added->suite_of = row->suite;
    added->label = row->label;
    return options_apply(added, settings);
}

/* The next word of a list; false at its end. */
static bool next_word(const char **list, char *word, size_t size) {
    size_t length = strcspn(*list, " ");
    snprintf(word, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ' ');
    return length > 0;
}

static bool expand(const suite_row *row, const char *sizes, const char *dtypes, const options *base,
                   options *cases, int32_t *count) {
    char size[16], dtype[16];
    for (int n = 0; next_word(&sizes, size, sizeof size); n++) {
        const char *types = dtypes;
        for (int d = 0; next_word(&types, dtype, sizeof dtype); d++)
            if (!(base->quick && (n % QUICK_STEP || d)) && *count < SUITE_CASES_MOST &&
                !add_case(row, size, dtype, base, &cases[(*count)++]))
                return false;
    }
    return true;
}

static bool is_wanted(const char *name, const suite_row *row) {
    return strcmp(name, row->suite) == 0 ||
           (strcmp(name, "all") == 0 && strcmp(row->suite, SUITE_TUNING) != 0);
}

static int32_t refuse_name(const char *name) {
    char names[256];
    for (int32_t i = 0, used = 0; i < SUITES; i++)
        used +=
            snprintf(names + used, sizeof names - (size_t)used, "%s%s", i ? ", " : "", suites[i]);
    message("--suite is \"%.60s\"; allowed is %s", name, names);
    return -1;
}

const char *suite_name(int32_t index) {
    return index < SUITES ? suites[index] : NULL;
}

int32_t suite_expand(const char *name, const options *base, bool gpu, options *cases) {
    int32_t count = 0, known = 0;
    while (known < SUITES && strcmp(name, suites[known]) != 0)
        known++;
    if (known == SUITES)
        return refuse_name(name);
    for (const suite_row *row = rows; row < rows + ROWS; row++) {
        char first[16];
        snprintf(first, sizeof first, "%.*s", (int)strcspn(row->dtypes, " "), row->dtypes);
        if (is_wanted(name, row) &&
            (!expand(row, row->sizes, row->dtypes, base, cases, &count) ||
             (gpu && !expand(row, row->gpu_sizes, first, base, cases, &count))))
            return -1;
    }
    return count;
}
