"""What arguments of PyTorch, flash-attention, FlashInfer, vLLM and Transformers are here."""

from __future__ import annotations

_MASK = (
    "causal, window and chunk for masks of that shape, q_lengths and k_lengths for padding, "
    "cu_seqlens for packed sequences, or tree_mask, a bool for each query and key"
)
_BIAS = "ropekit.apply, then attention that has it: ropekit's adds nothing to scores"
_DROPOUT = (
    "ropekit.apply, then torch.nn.functional.scaled_dot_product_attention: ropekit's attention has "
    "no dropout"
)
_PAGES = "block_table, the pages of each sequence, with k_lengths, its tokens"
_RULE = "rope_type, factor and the rule's other numbers, or all of them in config"
_PAIRING = 'pairing_in="interleaved", or "half_split" as in GPT-NeoX'
_TABLES = "cos and sin"
_CACHES = "k_cache and v_cache"
_WEIGHTS = "return_lse: the weights themselves are not kept"
_NOTHING = "nothing: the kernel finds out by itself"

# What is there, which begins with a keyword where one does the same, and what others call it.
_OTHERS = {
    "q": "query queries",
    "k": "key keys",
    "v": "value values",
    "causal": "is_causal",
    "scale": "scaling softmax_scale sm_scale attention_scale",
    "softcap": "soft_cap logits_soft_cap logit_soft_cap attn_logit_softcapping logit_cap",
    "sinks": "s_aux sink learnable_sink attention_sinks",
    "window=left + 1 and window_right=right, of (left, right)": "window_size",
    "window=left + 1": "window_left",
    "window": "sliding_window",
    "chunk": "attention_chunk attention_chunk_size chunk_size",
    _MASK: "attn_mask attention_mask mask custom_mask packed_custom_mask key_padding_mask "
    "block_mask",
    _BIAS: "alibi_slopes attn_bias bias position_bias score_mod",
    _DROPOUT: "dropout_p dropout attention_dropout attn_dropout",
    "k and v of fewer heads, without more": "enable_gqa num_key_value_groups",
    "torch.use_deterministic_algorithms": "deterministic",
    "return_lse": "return_softmax_lse return_aux",
    _WEIGHTS: "return_attn_probs return_attn_weights need_weights output_attentions",
    _NOTHING: "max_seqlen max_seqlen_q max_length_q max_length_k num_splits pack_gqa sm_margin "
    "scheduler_metadata",
    "cu_seqlens": "cu_seqlens_q cu_seq_lens_q query_start_loc qo_indptr indptr",
    "k_cu_seqlens": "cu_seqlens_k cu_seqlens_kv cu_seq_lens_k",
    "q_lengths": "seqused_q query_lens",
    "k_lengths": "cache_seqlens seqused_k seq_lens kv_lens kv_seq_lens context_lens",
    "block_table": "block_tables page_table",
    "block_table, with a row for each sequence of the call": "cache_batch_idx",
    f"{_CACHES} without padding ahead of a sequence": "cache_leftpad leftpad_k",
    "max_seqlen_k": "max_seq_len max_seqlen_kv",
    _PAGES: "kv_indptr kv_indices kv_last_page_len paged_kv_indptr paged_kv_indices "
    "paged_kv_last_page_len",
    f"{_CACHES}, as in kv_cache[0] and kv_cache[1]": "kv_cache paged_kv_cache",
    "k_cache": "key_cache",
    "v_cache": "value_cache",
    f"{_CACHES} of that type": "kv_cache_dtype",
    "cache, or k_cache and v_cache": "past_key_value past_key_values inference_params use_cache",
    "slots": "slot_mapping",
    "cache_layout": "kv_layout",
    "k_scale": "k_descale",
    "v_scale": "v_descale",
    "layout": "tensor_layout qkv_format input_layout batch_first unsqueeze_dim",
    "rotate": "pos_encoding_mode",
    "kernel": "backend attn_implementation",
    "positions": "position_ids pos_ids input_pos cache_position",
    "position_offset, or sequence_offsets": "offset offsets seqlen_offsets start_pos",
    "rope_theta": "theta base rope_base rotary_base",
    "rotary_dim": "dim rotary_embedding_dim",
    "head_dim": "head_size",
    "attention_factor": "attention_scaling",
    "sections": "mrope_section",
    _RULE: "rope_scaling rope_parameters rope_scale",
    _PAIRING: "interleaved interleave rotary_interleaved rope_interleave is_neox is_neox_style "
    "pairing",
    _TABLES: "freqs_cis cos_sin_cache position_embeddings",
    "cos": "rotary_cos cos_cache",
    "sin": "rotary_sin sin_cache",
    'direction="transpose"': "conjugate",
    "ropekit.apply_": "inplace out",
    "norm_eps": "eps epsilon rms_norm_eps layer_norm_eps",
    "q_weight, with norm_type and norm_eps": "q_norm q_norm_w",
    "k_weight, with norm_type and norm_eps": "k_norm k_norm_w",
    "hidden_size": "embed_dim d_model",
    "heads": "num_heads num_attention_heads n_heads",
    "kv_heads": "num_kv_heads num_key_value_heads n_kv_heads",
    "bias, of q_proj, k_proj and v_proj, and out_bias": "attention_bias qkv_bias",
}
HINTS = {other: own for own, others in _OTHERS.items() for other in others.split()}
