/* From a shape to a graph of cuDNN's front end, and its runs. */
#include "backends/cudnn/engine.h"

#include "backends/cudnn/handles.h"

#include <cudnn_frontend.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace fe = cudnn_frontend;
using tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

struct dnn_engine {
    fe::graph::Graph graph;
    std::vector<int> order; /* of DNN_POINTERS, as the graph takes them */
    size_t workspace;
    int32_t device;
};

namespace {

/* Unique numbers of tensors are those of DNN_POINTERS, from 1 on. */
tensor add(fe::graph::Graph &graph, int which, const std::vector<int64_t> &dim,
           const std::vector<int64_t> &stride, fe::DataType_t type) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(which + 1)
                            .set_dim(dim)
                            .set_stride(stride)
                            .set_data_type(type));
}

tensor add_list(fe::graph::Graph &graph, int which, int64_t count, fe::DataType_t type) {
    return add(graph, which, {count, 1, 1, 1}, {1, 1, 1, 1}, type);
}

std::vector<int64_t> dims_of(const dnn_shape &s, int which) {
    const bool keys = which == DNN_K || which == DNN_V || which == DNN_DK || which == DNN_DV;
    const int64_t dim = which == DNN_LSE ? 1
                        : which == DNN_Q || which == DNN_K || which == DNN_DQ || which == DNN_DK
                            ? s.head_dim
                            : s.v_head_dim;
    if (keys && s.page_size)
        return {s.pages, s.k_heads, s.page_size, dim};
    return {s.sequences, keys ? s.k_heads : s.q_heads, keys ? s.k_tokens : s.q_tokens, dim};
}

void place(fe::graph::Graph &graph, const dnn_shape &s, int which, const tensor &t) {
    t->set_uid(which + 1)
        .set_dim(dims_of(s, which))
        .set_stride({s.stride[which], s.stride[which] + 4})
        .set_data_type(which == DNN_LSE       ? fe::DataType_t::FLOAT
                       : s.dtype == ROPE_BF16 ? fe::DataType_t::BFLOAT16
                                              : fe::DataType_t::HALF);
    if (s.begins[which])
        t->set_ragged_offset(
            add_list(graph, DNN_OFFSETS + which, s.sequences + 1, fe::DataType_t::INT64));
}

tensor input(fe::graph::Graph &graph, const dnn_shape &s, int which) {
    const tensor t = graph.tensor(fe::graph::Tensor_attributes());
    place(graph, s, which, t);
    return t;
}

void output(fe::graph::Graph &graph, const dnn_shape &s, int which, const tensor &t) {
    t->set_output(true);
    place(graph, s, which, t);
}

/* What the forward and the backward name alike. */
template <typename attributes_type>
void set_masks(fe::graph::Graph &graph, const dnn_shape &s, attributes_type &attributes) {
    attributes.set_attn_scale(s.scale);
    attributes.set_diagonal_alignment(s.alike ? fe::DiagonalAlignment_t::TOP_LEFT
                                              : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    if (s.right < INT64_MAX)
        attributes.set_diagonal_band_right_bound(static_cast<int>(s.right));
    if (s.left < INT64_MAX)
        attributes.set_diagonal_band_left_bound(static_cast<int>(s.left));
    if (s.lengths)
        attributes.set_padding_mask(true)
            .set_seq_len_q(add_list(graph, DNN_Q_LENGTHS, s.sequences, fe::DataType_t::INT32))
            .set_seq_len_kv(add_list(graph, DNN_K_LENGTHS, s.sequences, fe::DataType_t::INT32));
    if (s.has_sinks)
        attributes.set_sink_token(add(graph, DNN_SINKS, {1, s.q_heads, 1, 1}, {s.q_heads, 1, 1, 1},
                                      fe::DataType_t::FLOAT));
    if (s.q_total)
        attributes.set_max_total_seq_len_q(s.q_total);
    if (s.k_total)
        attributes.set_max_total_seq_len_kv(s.k_total);
}

void make_forward(fe::graph::Graph &graph, const dnn_shape &s) {
    fe::graph::SDPA_attributes attributes;
    attributes.set_name("attention").set_generate_stats(s.has_lse != 0);
    set_masks(graph, s, attributes);
    if (s.page_size) {
        const tensor table = add(graph, DNN_TABLE, {s.sequences, 1, s.table_pages, 1},
                                 {s.table_pages, s.table_pages, 1, 1}, fe::DataType_t::INT32);
        attributes.set_paged_attention_k_table(table).set_paged_attention_v_table(table);
        attributes.set_paged_attention_max_seq_len_kv(static_cast<int>(s.k_tokens));
    }
    const tensor q = input(graph, s, DNN_Q), k = input(graph, s, DNN_K), v = input(graph, s, DNN_V);
    const auto made = graph.sdpa(q, k, v, std::move(attributes));
    output(graph, s, DNN_OUT, made[0]);
    if (s.has_lse)
        output(graph, s, DNN_LSE, made[1]);
}

void make_backward(fe::graph::Graph &graph, const dnn_shape &s) {
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_name("attention_backward").set_deterministic_algorithm(!s.nondeterministic);
    set_masks(graph, s, attributes);
    const tensor q = input(graph, s, DNN_Q), k = input(graph, s, DNN_K), v = input(graph, s, DNN_V),
                 out = input(graph, s, DNN_OUT), dout = input(graph, s, DNN_DOUT),
                 lse = input(graph, s, DNN_LSE);
    const auto made = graph.sdpa_backward(q, k, v, out, dout, lse, std::move(attributes));
    output(graph, s, DNN_DQ, made[0]);
    output(graph, s, DNN_DK, made[1]);
    output(graph, s, DNN_DV, made[2]);
}

/* Up to the question whether cuDNN has an engine. */
fe::error_t make(fe::graph::Graph &graph, const dnn_shape &s, cudnnHandle_t handle) {
    graph.set_io_data_type(s.dtype == ROPE_BF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    s.is_backward ? make_backward(graph, s) : make_forward(graph, s);
    fe::error_t error = graph.validate();
    if (error.is_good())
        error = graph.build_operation_graph(handle);
    if (error.is_good())
        error = graph.create_execution_plans({fe::HeurMode_t::A});
    return error.is_good() ? graph.check_support() : error;
}

/* Whether a text names a failure of memory, which is no word on what cuDNN has: the front end hands
 * on a status of an engine's build as text alone. */
bool lacks_memory(const char *text) {
    const char *const names[] = {
        fe::detail::get_error_string(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
        fe::detail::get_error_string(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED),
        fe::detail::cuda_get_error_string(cudaErrorMemoryAllocation)};
    for (const char *name : names)
        if (std::strstr(text, name))
            return true;
    return false;
}

/* The text's first line, as far as there is room; allocates nothing. */
rope_status refuse(char *reason, const char *text) {
    std::snprintf(reason, ROPE_REASON_SIZE, "cuDNN: %.*s",
                  static_cast<int>(std::strcspn(text, "\n")), text);
    return lacks_memory(text) ? ROPE_ERROR_OUT_OF_MEMORY : ROPE_ERROR_UNSUPPORTED;
}

/* Work that may throw, as the front end does where cuDNN lacks a function. */
template <typename function> rope_status guarded(char *reason, function work) {
    try {
        const fe::error_t error = work();
        return error.is_good() ? ROPE_OK : refuse(reason, error.err_msg.c_str());
    } catch (const std::bad_alloc &e) {
        (void)refuse(reason, e.what());
        return ROPE_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception &e) {
        return refuse(reason, e.what());
    }
}

fe::error_t build(dnn_engine &e, const dnn_shape &shape) {
    const dnn_handle handle(e.device);
    fe::error_t error = make(e.graph, shape, handle.get());
    if (error.is_good())
        error = e.graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (error.is_bad())
        return error;
    int64_t bytes = 0;
    error = e.graph.get_workspace_size(bytes);
    e.workspace = static_cast<size_t>(bytes);
    for (const int64_t uid : e.graph.get_variant_pack_uids_sorted())
        e.order.push_back(static_cast<int>(uid) - 1);
    return error;
}

} // namespace

rope_status dnn_engine_create(const dnn_shape *shape, int32_t device, dnn_engine **engine,
                              char *reason) {
    std::unique_ptr<dnn_engine> made;
    const rope_status status = guarded(reason, [&] {
        made = std::make_unique<dnn_engine>();
        made->device = device;
        return build(*made, *shape);
    });
    if (status == ROPE_OK)
        *engine = made.release();
    return status;
}

void dnn_engine_destroy(dnn_engine *engine) {
    delete engine;
}

rope_status dnn_engine_probe(const dnn_shape *shape, int32_t device, char *reason) {
    return guarded(reason, [&] {
        fe::graph::Graph graph;
        const dnn_handle handle(device);
        return make(graph, *shape, handle.get());
    });
}

size_t dnn_engine_workspace(const dnn_engine *engine) {
    return engine->workspace;
}

rope_status dnn_engine_run(const dnn_engine *engine, void *const at[DNN_POINTERS], void *workspace,
                           void *stream, char *reason) {
    const rope_status status = guarded(reason, [&]() -> fe::error_t {
        void *pointers[DNN_POINTERS];
        const dnn_handle handle(engine->device);
        const int count = static_cast<int>(engine->order.size());
        for (int i = 0; i < count; i++)
            pointers[i] = at[engine->order[i]];
        if (fe::detail::set_stream(handle.get(), static_cast<cudaStream_t>(stream)) !=
            CUDNN_STATUS_SUCCESS)
            return {fe::error_code_t::CUDNN_BACKEND_API_FAILED, "cudnnSetStream failed"};
        return engine->graph.execute(handle.get(), pointers, count, workspace);
    });
    return status == ROPE_OK ? ROPE_OK : ROPE_ERROR_DEVICE;
}
