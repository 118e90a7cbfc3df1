#include "bench/measure/suites.h"

#include "bench/output/message.h"

#include <string.h>

/* Headings of suite_headings. */
typedef struct suite {
    const char *name, *headings;
} suite;

static const suite suites[] = {
    {"single-head", "|n|m|"},
    {"tokens", "|N||dtype"},
    {"interleaved", "|S||dtype"},
    {"large", "|tokens|D|dtype"},
    {"prefill", "model|T||dtype"},
    {"decode", "model|sequences||dtype"},
    {"programmatic", "model|sequences||"},
    {"backward", "direction|T||dtype"},
    {"in-place", "window|T||dtype"},
    {"heads", "model|T|D|dtype"},
    {"rules", "rule|||"},
    {"overhead", "heads|||dtype"},
    {"append", "case|T||"},
    {"attention", "case|B x T|D|dtype"},
    {"attention-backward", "case|B x T|D|dtype"},
    {SUITE_ACCURACY, NULL},
};
#define SUITES (sizeof suites / sizeof suites[0])

/* A quick run takes every third number of tokens and the first dtype. */
#define QUICK_STEP 3

/* Every combination of tokens and dtypes over the settings; "2x512": tokens of two batch rows. */
typedef struct suite_row {
    const char *suite, *label, *settings;
    const char *tokens, *dtypes;
    bool gpu_only;
} suite_row;

#define LLAMA "--q-heads=32 --k-heads=8 --head-dim=128 --rope-theta=500000"
#define QWEN "--q-heads=64 --k-heads=8 --head-dim=128 --rope-theta=1000000"
/* The rotary slice of q's heads, in place, and the key that all heads share. */
#define MLA                                                                                        \
    "--in-place --q-heads=128 --k-heads=1 --head-dim=192 --rotary-dim=64 --rotary-offset=128 "     \
    "--k-head-dim=64 --pairing-in=interleaved"
/* As many bytes as the windows of MLA, side by side. */
#define MLA_CONTIGUOUS "--in-place --q-heads=128 --k-heads=1 --head-dim=64 --pairing-in=interleaved"
/* Qwen3's norms of q and k. */
#define RMS(part)                                                                                  \
    " --" part "-norm-type=rms --" part "-norm-weight=weight --" part                              \
    "-norm-rounding=twice --" part "-norm-eps=1e-6"
#define QWEN3_8B "--q-heads=32 --k-heads=8 --head-dim=128 --rope-theta=1000000" RMS("q") RMS("k")
#define SLOTS " --append --kv-cache=slots"
/* Into f16, as llama.cpp does on a CPU. */
#define F32_TO_F16                                                                                 \
    SLOTS " --k-store-dtype=f16 --v-store-dtype=f16 --cache=cold", "1 2048", "f32", false
#define FP8 " --k-store-dtype=f8e4m3 --v-store-dtype=f8e4m3 --k-scale=tensor --v-scale=tensor"
/* The latent, normalised, and the rotated part of the key in one row of a page. */
#define MLA_ROW                                                                                    \
    "--in-place --q-heads=128 --k-heads=1 --v-heads=0 --head-dim=192 --rotary-dim=64 "             \
    "--rotary-offset=128 --k-head-dim=576 --k-rotary-offset=512 --pairing-in=interleaved "         \
    "--pairing-out=half-split --k-norm-dim=512" RMS("k")
/* Heads of DeepSeek-V3, keys and values projected. */
#define MLA_HEADS                                                                                  \
    "--q-heads=128 --k-heads=128 --head-dim=192 --rotary-dim=64 --rotary-offset=128 "              \
    "--v-head-dim=128"
/* Queries of DeepSeek-V3, which absorb the projection of keys and values, over these rows. */
#define MLA_ABSORBED                                                                               \
    "--q-heads=128 --k-heads=1 --head-dim=576 --v-head-dim=512 --rotary-dim=64 "                   \
    "--rotary-offset=512 --kv-cache=table --v-in-k --keys="
/* A context of 128K tokens is shifted. */
#define MOVED "--q-heads=0 --k-heads=8 --head-dim=128 --k-source=cache --position-offset=-256"
#define ONE_HEAD "--q-heads=1 --k-heads=0"
#define THREE "bf16 f32 f16"
#define PROMPTS "1 16 128 1024 2048 4096 8192 16384"
#define LONG_PROMPTS "32768 65536 131072"
#define COLUMN                                                                                     \
    "2048 6144 10240 14336 18432 22528 26624 30720 34816 38912 43008 47104 51200 55296 59392 "     \
    "63488"
#define FACTORS8 "1,1.05,1.1,1.25,1.5,2,4,8"
#define FACTORS64                                                                                  \
    FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8 "," FACTORS8         \
             "," FACTORS8

#define HEAD(head_dim, cache)                                                                      \
    {                                                                                              \
        "single-head", "", ONE_HEAD " --head-dim=" head_dim " --cache=" cache,                     \
            "512 1024 2048 4096", "f32", false                                                     \
    }
#define PREFILL(model, shape)                                                                      \
    {"prefill", model, shape " --cache=cold", PROMPTS, "bf16", false}, {                           \
        "prefill", model, shape " --cache=cold", LONG_PROMPTS, "bf16", true                        \
    }
/* One new token of each sequence, at a position of its own, as engines pack them. */
#define DECODE(suite, model, shape, dtypes, gpu_only)                                              \
    { suite, model, shape " --position-ids=random --cache=warm", "1 8 64 256", dtypes, gpu_only }
#define BACKWARD(direction, settings)                                                              \
    {                                                                                              \
        "backward", direction, LLAMA " --batch=4" settings " --cache=cold", "4096", "f32 bf16",    \
            false                                                                                  \
    }
#define IN_PLACE(window, settings, tokens, dtypes, gpu_only)                                       \
    { "in-place", window, LLAMA " --in-place" settings " --cache=cold", tokens, dtypes, gpu_only }
/* Heads of other sizes than 128, and parts of heads: a step of some sequences, and a prompt. */
#define HEADS(model, settings)                                                                     \
    {"heads", model, settings " --cache=warm", "8", "f32 bf16", false}, {                          \
        "heads", model, settings " --cache=cold", "4096", "f32 bf16", false                        \
    }
#define APPEND(name, settings, tokens)                                                             \
    { "append", name, settings SLOTS " --cache=cold", tokens, "bf16", false }
#define APPEND_DECODE(name, settings, gpu_only)                                                    \
    {                                                                                              \
        "append", name, settings SLOTS " --position-ids=random --cache=warm", "1 8 64 256",        \
            "bf16", gpu_only                                                                       \
    }
#define HEADS32_32 "--q-heads=32 --k-heads=32"
#define HEADS32_8 "--q-heads=32 --k-heads=8"
#define HEADS64_8 "--q-heads=64 --k-heads=8"
/* What takes a CPU seconds, and what only a GPU is asked for: among both, 16K tokens in all. */
#define SHORT_ROWS "1x128 1x512 1x1024 1x2048 4x512"
#define LONG_ROWS                                                                                  \
    "32x512 16x1024 8x2048 4x1024 4x2048 4x4096 2x8192 1x8192 1x16384 1x32768 1x65536 1x131072"
#define WIDE_ROWS "1x512 1x2048 8x2048 1x8192 1x32768"
#define ATTENTION(name, settings, tokens, dtypes, gpu_only)                                        \
    { "attention", name, "--attention " settings " --cache=cold", tokens, dtypes, gpu_only }
#define ATTENTION_PREFILL(name, settings)                                                          \
    ATTENTION(name, settings, SHORT_ROWS, "bf16 f32", false),                                      \
        ATTENTION(name, settings, "1x4096 " LONG_ROWS, "bf16", true)
#define ATTENTION_PAGED(name, settings, keys, rows, dtypes, gpu_only)                              \
    ATTENTION(name, HEADS32_8 settings " --kv-cache=table --keys=" keys, rows, dtypes, gpu_only)
#define ATTENTION_DECODE(name, keys, rows, gpu_rows)                                               \
    ATTENTION_PAGED("decode, " name " keys", "", keys, rows, "bf16 f32", false),                   \
        ATTENTION_PAGED("decode, " name " keys", "", keys, gpu_rows, "bf16", true)
/* Attention and its backward, three and a half times the products: on a CPU fewer shapes. */
#define GRADIENT(name, settings, tokens, dtypes, gpu_only)                                         \
    {                                                                                              \
        "attention-backward", name, "--attention --backward " settings " --cache=cold", tokens,    \
            dtypes, gpu_only                                                                       \
    }
#define GRADIENT_PREFILL(name, settings, tokens)                                                   \
    GRADIENT(name, settings, tokens, "bf16 f32", false),                                           \
        GRADIENT(name, settings,                                                                   \
                 "32x512 16x1024 8x2048 4x4096 2x8192 1x4096 1x8192 1x16384 1x32768 1x65536 "      \
                 "1x131072",                                                                       \
                 "bf16", true)
/* Cases of a table of kernels, forward alone or with the backward, also by kernels that sum in no
 * fixed order, of which GPUs alone may have some. */
#define TUNED(name, settings, tokens, dtypes, gpu_only)                                            \
    { "tuning", name, "--attention " settings " --cache=cold", tokens, dtypes, gpu_only }
#define TUNED_BOTH(name, settings, tokens, dtypes, gpu_only)                                       \
    TUNED(name, settings, tokens, dtypes, gpu_only),                                               \
        TUNED(name, "--backward " settings, tokens, dtypes, gpu_only),                             \
        TUNED(name, "--backward --nondeterministic " settings, tokens, "bf16", true)
#define TUNED_PREFILL(name, settings)                                                              \
    TUNED_BOTH(name, settings, "1x128 1x512 1x1024", "bf16 f32", false),                           \
        TUNED_BOTH(name, settings,                                                                 \
                   "1x2048 1x4096 32x512 16x1024 8x2048 4x4096 1x8192 2x8192 1x16384 1x32768 "     \
                   "1x131072",                                                                     \
                   "bf16", true)
#define TUNED_FEW(name, settings)                                                                  \
    TUNED_BOTH(name, settings, "1x128 1x1024", "bf16 f32", false),                                 \
        TUNED_BOTH(name, settings, "1x512 1x2048 8x2048 1x8192 1x32768", "bf16", true)
#define TUNED_PAGED(name, settings, keys, rows, gpu_rows)                                          \
    TUNED(name, settings " --keys=" keys, rows, "bf16 f32", false),                                \
        TUNED(name, settings " --keys=" keys, gpu_rows, "bf16", true)
#define RULE(name, settings)                                                                       \
    {                                                                                              \
        "rules", name, "--q-heads=32 --k-heads=8 --head-dim=128 --cache=cold" settings, "4096",    \
            "bf16", false                                                                          \
    }

static const suite_row rows[] = {
    HEAD("128", "warm"),
    HEAD("256", "warm"),
    HEAD("128", "cold"),
    HEAD("256", "cold"),
    {"tokens", "", ONE_HEAD " --head-dim=128 --cache=cold", COLUMN, "f32 f16", false},
    {"tokens", "", ONE_HEAD " --head-dim=128 --cache=cold", "63488", "bf16", false},
    {"interleaved", "",
     "--batch=4 --q-heads=8 --k-heads=8 --head-dim=64 --pairing-in=interleaved --cache=cold",
     "128 256 512 1024 2048", THREE, false},
    {"large", "", "--q-heads=128 --k-heads=0 --head-dim=128 --cache=cold", "8192", "f32", false},
    PREFILL("Llama-3-8B", LLAMA),
    {"prefill", "Llama-3-8B", LLAMA " --cache=cold", "16 128 2048 16384", "f32 f16", false},
    PREFILL("Qwen3-32B", QWEN),
    PREFILL("DeepSeek MLA", MLA),
    {"prefill", "DeepSeek MLA, contiguous", MLA_CONTIGUOUS " --cache=cold", "8192 32768", "bf16",
     true},
    DECODE("decode", "Llama-3-8B", LLAMA, THREE, false),
    DECODE("decode", "Qwen3-32B", QWEN, "bf16", false),
    DECODE("decode", "DeepSeek MLA", MLA, "bf16", false),
    DECODE("programmatic", "Llama-3-8B", LLAMA " --launch=programmatic", "bf16", true),
    BACKWARD("backward", " --direction=transpose"),
    BACKWARD("forward", ""),
    IN_PLACE("whole", "", "16 2048 16384", THREE, false),
    IN_PLACE("whole", "", "8192 32768 131072", "bf16", true),
    IN_PLACE("half", " --rotary-dim=64", "8192", "bf16", false),
    HEADS("gpt-oss", "--q-heads=64 --k-heads=8 --head-dim=64"),
    HEADS("Qwen2-VL vision", "--q-heads=16 --k-heads=16 --head-dim=80"),
    HEADS("Phi-3.5-mini", "--q-heads=32 --k-heads=32 --head-dim=96"),
    HEADS("Gemma-3-4B", "--q-heads=8 --k-heads=4 --head-dim=256"),
    HEADS("GPT-J-6B", "--q-heads=16 --k-heads=16 --head-dim=256 --rotary-dim=64 "
                      "--pairing-in=interleaved"),
    HEADS("GPT-NeoX-20B", "--q-heads=64 --k-heads=64 --head-dim=96 --rotary-dim=24"),
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
    RULE("mixed pairing", " --pairing-in=interleaved --pairing-out=half-split"),
    RULE("xpos", " --xpos-scale-base=512"),
    RULE("three axes", " --axes=3 --axis-layout=chunked --sections=16,24,24 "
                       "--position-ids=sequential"),
    RULE("random ids", " --position-ids=random"),
    RULE("f32 angles", " --angle-mode=f32"),
    RULE("f32 tables", " --angle-mode=table"),
    RULE("bf16 tables, model dtype",
         " --angle-mode=table --table-dtype=bf16 --arithmetic=model-dtype"),
    {"overhead", "1", ONE_HEAD " --head-dim=64 --cache=warm", "1", "f32 bf16", false},
    {"overhead", "32 + 8", LLAMA " --cache=warm", "1", "f32 bf16 f16", false},
    APPEND("Llama-3-8B", LLAMA, "1 2048 4096 16384"),
    APPEND("Llama-3-8B, fp8", LLAMA FP8, "1 2048 4096 16384"),
    APPEND("Qwen3-8B", QWEN3_8B, "1 2048 4096 16384"),
    APPEND("Qwen3-8B, fp8", QWEN3_8B FP8, "1 2048 4096 16384"),
    APPEND("DeepSeek-V3 MLA", MLA_ROW, "1 2048 4096 16384"),
    {"append", "Llama-3-8B, f32 to f16", LLAMA F32_TO_F16},
    {"append", "Qwen3-8B, f32 to f16", QWEN3_8B F32_TO_F16},
    APPEND_DECODE("Llama-3-8B, decode", LLAMA, false),
    APPEND_DECODE("Qwen3-8B, decode", QWEN3_8B, false),
    APPEND_DECODE("Qwen3-8B, fp8, decode", QWEN3_8B FP8, false),
    APPEND_DECODE("DeepSeek-V3 MLA, decode", MLA_ROW, false),
    APPEND_DECODE("Llama-3-8B, decode, programmatic", LLAMA " --launch=programmatic", true),
    APPEND_DECODE("Qwen3-8B, decode, programmatic", QWEN3_8B " --launch=programmatic", true),
    APPEND("keys moved", MOVED, "131072"),
    APPEND("keys moved, fp8", MOVED " --k-store-dtype=f8e4m3 --k-scale=tensor", "131072"),
    ATTENTION_PREFILL("32/32 heads", HEADS32_32 " --head-dim=128"),
    ATTENTION_PREFILL("32/8 heads", HEADS32_8 " --head-dim=128"),
    ATTENTION_PREFILL("64/8 heads", HEADS64_8 " --head-dim=128"),
    ATTENTION_PREFILL("32/32 heads", HEADS32_32 " --head-dim=64"),
    ATTENTION("32/8 heads", HEADS32_8 " --head-dim=256", WIDE_ROWS, "bf16", true),
    ATTENTION("window 1K", HEADS32_8 " --window=1024", "1x2048", "bf16 f32", false),
    ATTENTION("window 4K", HEADS32_8 " --window=4096", "1x8192 1x16384 1x32768 1x131072", "bf16",
              true),
    ATTENTION("packed", HEADS32_8 " --cu-seqlens=0,128,640,1664,2048", "2048", "bf16 f32", false),
    ATTENTION("packed", HEADS32_8 " --cu-seqlens=0,512,1536,3584,7680,16384", "16384", "bf16",
              true),
    ATTENTION_PAGED("chunk of a prompt, 4K keys", "", "4096", "1x256", "bf16 f32", false),
    ATTENTION_PAGED("chunk of a prompt, 32K keys", "", "32768", "1x2048 4x2048", "bf16", true),
    ATTENTION_DECODE("1K", "1024", "1x1 8x1 32x1", "64x1 128x1"),
    ATTENTION_DECODE("8K", "8192", "1x1 8x1", "32x1 64x1 128x1"),
    ATTENTION_DECODE("32K", "32768", "1x1", "8x1 32x1 64x1 128x1"),
    ATTENTION_DECODE("128K", "131072", "1x1", "8x1 16x1"),
    ATTENTION_PAGED("decode, window 4K, 32K keys", " --window=4096", "32768", "1x1 8x1", "bf16",
                    false),
    ATTENTION("MLA decode, 8K keys", MLA_ABSORBED "8192", "1x1 8x1 64x1", "bf16", true),
    ATTENTION("MLA decode, 32K keys", MLA_ABSORBED "32768", "1x1 8x1 32x1", "bf16", true),
    GRADIENT_PREFILL("32/32 heads", HEADS32_32 " --head-dim=128", "1x128 1x512 1x1024"),
    GRADIENT_PREFILL("32/8 heads", HEADS32_8 " --head-dim=128", "1x128 1x512 1x1024 1x2048"),
    GRADIENT_PREFILL("64/8 heads", HEADS64_8 " --head-dim=128", "1x128 1x512"),
    GRADIENT_PREFILL("32/32 heads", HEADS32_32 " --head-dim=64", "1x128 1x512 1x1024"),
    GRADIENT("32/8 heads", HEADS32_8 " --head-dim=256", WIDE_ROWS, "bf16", true),
    GRADIENT("32/8 heads, any order", HEADS32_8 " --head-dim=128 --nondeterministic",
             "1x512 1x1024 1x2048 8x2048 1x8192 2x8192 1x32768 1x131072", "bf16", true),
    GRADIENT("4/1 heads", "--q-heads=4 --k-heads=1", "1x4096", "bf16 f32", false),
    GRADIENT("window 1K", HEADS32_8 " --window=1024", "1x2048", "bf16 f32", false),
    GRADIENT("window 4K", HEADS32_8 " --window=4096", "1x8192 1x16384 1x32768", "bf16", true),
    GRADIENT("packed", HEADS32_8 " --cu-seqlens=0,128,640,1664,2048", "2048", "bf16 f32", false),
    GRADIENT("packed", HEADS32_8 " --cu-seqlens=0,512,1536,3584,7680,16384", "16384", "bf16", true),
};
#define ROWS (sizeof rows / sizeof rows[0])

static const suite_row tuning_rows[] = {
    TUNED_PREFILL("32/32 heads", HEADS32_32 " --head-dim=128"),
    TUNED_PREFILL("32/8 heads", HEADS32_8 " --head-dim=128"),
    TUNED_PREFILL("64/8 heads", HEADS64_8 " --head-dim=128"),
    TUNED_PREFILL("32/32 heads", HEADS32_32 " --head-dim=64"),
    TUNED_PREFILL("32/8 heads", HEADS32_8 " --head-dim=64"),
    TUNED_PREFILL("64/8 heads", HEADS64_8 " --head-dim=64"),
    TUNED_FEW("32/32 heads", HEADS32_32 " --head-dim=96"),
    TUNED_FEW("32/32 heads", HEADS32_32 " --head-dim=256"),
    TUNED_FEW("32/8 heads", HEADS32_8 " --head-dim=256"),
    TUNED_FEW("64/8 heads", HEADS64_8 " --head-dim=256"),
    TUNED_BOTH("4/1 heads", "--q-heads=4 --k-heads=1 --head-dim=128", "1x128 1x1024", "bf16 f32",
               false),
    TUNED_BOTH("all keys", HEADS32_32 " --mask=full --head-dim=64", "1x1024", "bf16 f32", false),
    TUNED_BOTH("all keys", HEADS32_32 " --mask=full --head-dim=64", "16x1024 4x4096", "bf16", true),
    TUNED_BOTH("all keys", HEADS32_8 " --mask=full --head-dim=128", "1x1024", "bf16 f32", false),
    TUNED_BOTH("all keys", HEADS32_8 " --mask=full --head-dim=128", "16x1024 4x4096", "bf16", true),
    TUNED_BOTH("window 128", HEADS64_8 " --window=128 --head-dim=64", "1x1024", "bf16 f32", false),
    TUNED_BOTH("window 128", HEADS64_8 " --window=128 --head-dim=64", "1x4096 1x16384", "bf16",
               true),
    TUNED_BOTH("window 1K", HEADS32_8 " --window=1024", "1x2048", "bf16 f32", false),
    TUNED_BOTH("window 1K", HEADS32_8 " --window=1024 --head-dim=256", "1x4096 1x16384", "bf16",
               true),
    TUNED_BOTH("window 4K", HEADS32_8 " --window=4096", "1x8192 1x16384 1x32768 1x131072", "bf16",
               true),
    TUNED_BOTH("packed", HEADS32_8 " --cu-seqlens=0,128,640,1664,2048", "2048", "bf16 f32", false),
    TUNED_BOTH("packed", HEADS32_8 " --cu-seqlens=0,512,1536,3584,7680,16384", "16384", "bf16",
               true),
    TUNED_BOTH("packed", HEADS32_32 " --head-dim=64 --cu-seqlens=0,512,1536,3584,7680,16384",
               "16384", "bf16", true),
    TUNED_BOTH("MLA", MLA_HEADS, "1x512 1x2048 1x4096 4x4096 1x16384", "bf16", true),
    TUNED_PAGED("chunk, 4K keys", HEADS32_8 " --kv-cache=table", "4096", "1x256", "8x256"),
    TUNED_PAGED("chunk, 32K keys", HEADS32_8 " --kv-cache=table", "32768", "1x16", "1x2048"),
    TUNED_PAGED("decode, 1K keys", HEADS32_8 " --kv-cache=table", "1024", "1x1 8x1", "64x1"),
    TUNED_PAGED("decode, 8K keys", HEADS32_8 " --kv-cache=table", "8192", "1x1 8x1", "64x1"),
    TUNED_PAGED("decode, 32K keys", HEADS32_8 " --kv-cache=table", "32768", "1x1", "8x1 64x1"),
    TUNED_PAGED("decode, 128K keys", HEADS32_8 " --kv-cache=table", "131072", "1x1", "8x1"),
    TUNED_PAGED("decode, window 4K, 32K keys", HEADS32_8 " --window=4096 --kv-cache=table", "32768",
                "1x1 8x1", "64x1"),
    TUNED_PAGED("decode, 8K keys", HEADS64_8 " --head-dim=64 --kv-cache=table", "8192", "1x1",
                "8x1 64x1"),
    TUNED("decode, 8K keys", HEADS32_32 " --head-dim=96 --kv-cache=table --keys=8192",
          "1x1 8x1 64x1", "bf16", true),
    TUNED("decode, 8K keys", HEADS32_8 " --head-dim=256 --kv-cache=table --keys=8192",
          "1x1 8x1 64x1", "bf16", true),
    TUNED("decode, 32K keys", HEADS32_8 " --head-dim=256 --kv-cache=table --keys=32768", "1x1 8x1",
          "bf16", true),
    TUNED("decode, MLA, 8K keys", MLA_HEADS " --kv-cache=table --keys=8192", "1x1 8x1", "bf16",
          true),
    TUNED_PAGED("decode, padded, 1K keys", HEADS32_8 " --kv-cache=sequence", "1024", "1x1 8x1",
                "64x1"),
    TUNED_PAGED("decode, padded, 8K keys", HEADS32_8 " --kv-cache=sequence", "8192", "1x1 8x1",
                "64x1"),
    TUNED_PAGED("decode, padded, 32K keys", HEADS32_8 " --kv-cache=sequence", "32768", "1x1",
                "8x1"),
};
#define TUNING_ROWS (sizeof tuning_rows / sizeof tuning_rows[0])

static bool add_case(const suite_row *row, const char *tokens, const char *dtype,
                     const options *base, bench_case *added) {
    size_t size = strlen(row->settings) + strlen(tokens) + strlen(dtype) + 32;
    char *settings = pool_alloc(base->pool, size, 1);
    const int batch = (int)(strcspn(tokens, "x") % strlen(tokens));
    if (!settings)
        return false;
    snprintf(settings, size, "%s%.*s%s--tokens=%s --dtype=%s %s", batch ? "--batch=" : "", batch,
             tokens, batch ? " " : "", tokens + batch + (batch > 0), dtype, row->settings);
    *added = (bench_case){row->suite, row->label, settings, *base};
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
    for (int t = 0; next_word(&token_list, tokens, sizeof tokens); t++) {
        const char *dtype_list = row->dtypes;
        for (int d = 0; next_word(&dtype_list, dtype, sizeof dtype); d++)
            if (!(base->quick && (t % QUICK_STEP || d)) && *count < SUITE_CASES_MOST &&
                !add_case(row, tokens, dtype, base, &cases[(*count)++]))
                return false;
    }
    return true;
}

static const suite *find_suite(const char *name) {
    for (size_t i = 0; i < SUITES; i++)
        if (strcmp(name, suites[i].name) == 0)
            return &suites[i];
    return NULL;
}

static int32_t refuse_name(const char *name) {
    char names[256];
    size_t used = 0;
    for (int32_t i = 0; suite_name(i) && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 suite_name(i));
    message("--suite is \"%.60s\"; allowed is %s", name, names);
    return -1;
}

const char *suite_name(int32_t index) {
    return index < (int32_t)SUITES ? suites[index].name : index == (int32_t)SUITES ? "all" : NULL;
}

const char *suite_headings(const char *name) {
    return find_suite(name)->headings;
}

int32_t suite_expand(const char *name, const options *base, bool gpu, bench_case *cases) {
    int32_t count = 0;
    bool all = strcmp(name, "all") == 0;
    if (!all && !find_suite(name))
        return refuse_name(name);
    for (size_t i = 0; i < ROWS; i++)
        if ((all || strcmp(name, rows[i].suite) == 0) && (gpu || !rows[i].gpu_only) &&
            !expand_row(&rows[i], base, cases, &count))
            return -1;
    return count;
}

int32_t suite_expand_tuning(const options *base, bool gpu, bench_case *cases) {
    int32_t count = 0;
    for (size_t i = 0; i < TUNING_ROWS; i++)
        if ((gpu || !tuning_rows[i].gpu_only) && !expand_row(&tuning_rows[i], base, cases, &count))
            return -1;
    return count;
}
