/* read_config FILE [LAYER_TYPE]  reads a model's config.json, prints which kinds of layers it has
 * and how the heads of one of them rotate. */
#include <ropekit/rope.h>

#include <stdio.h>

static void print_kinds(const rope_config *config) {
    rope_layer_kind kind;
    kind.struct_size = sizeof kind;
    for (int32_t i = 0; i < rope_config_kind_count(config); i++)
        if (rope_config_kind_get(config, i, &kind) == ROPE_OK)
            printf("%s%s, window %lld (0: none)\n", *kind.name ? kind.name : "all layers alike",
                   kind.rotates ? "" : ", which do not rotate", (long long)kind.window);
}

int main(int argc, char **argv) {
    static char json[1 << 20];
    static double inv_freq[ROPE_MAX_ROTARY_DIM / 2];
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file)
        return fprintf(stderr, "no file is given, or it cannot be read\n"), 2;
    size_t length = fread(json, 1, sizeof json, file);
    fclose(file);
    rope_config *config = NULL;
    rope_desc desc = ROPE_DESC_INIT; /* for rope_plan_create, as long as config lives */
    int bad = rope_config_parse(&config, json, length, argc > 2 ? argv[2] : NULL) != ROPE_OK ||
              rope_config_finish(config, &desc, NULL) != ROPE_OK ||
              rope_config_check(config) != ROPE_OK ||
              rope_frequencies(&desc, 0, inv_freq, ROPE_MAX_ROTARY_DIM / 2, NULL) != ROPE_OK;
    if (bad)
        fprintf(stderr, "%s: %s\n", argv[1], rope_last_error());
    else {
        print_kinds(config);
        int count = desc.rotary_dim ? desc.rotary_dim : desc.head_dim;
        printf("%d of %d elements rotate, the last pair by %.8g radians a position\n", count,
               desc.head_dim, inv_freq[count / 2 - 1]);
    }
    rope_config_destroy(config);
    return bad;
}
