#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Attention to keys and values that are kept in pages (Kwon et al. 2023, arXiv:2309.06180, section 4.1). All sequences
// share the pages. Row b of the table lists the pages of sequence b in order: with pages of n rows, position p is in
// row p % n of page table[b, p / n]. The positions of a call's tokens are an operand: -1 stands for no token.
// pages: [pages, kv_heads, page, head_dim]   table: [batch, pages of a sequence]   positions: [batch, seq]
// A shard has all pages, with its heads only. If query heads are split, it has the heads of keys that its heads read.

namespace shardrun::graph {
namespace {

/// Throws Error{shape_mismatch} unless the table (operand `first`) and the positions (the next operand) are i32.
void require_places(std::string_view op, const Operands& inputs, std::size_t first) {
  require_integers(op, inputs, first);
  require_integers(op, inputs, first + 1);
}

ShardingRule write_pages_rule(const Attributes&, const Operands& inputs) {
  require_real("write_pages", inputs, 0);
  require_real("write_pages", inputs, 1);
  require_places("write_pages", inputs, 2);
  ShardingRule rule = parse_rule("p h s d, b t h d, b m, b t -> p h s d", {.whole = "p s d b t m"});
  if (!inputs.empty()) {
    rule.dtypes = {inputs[0].dtype};
  }
  return rule;
}

/// Throws Error{shape_mismatch} unless the number of query heads is the number of key heads times the group.
void require_heads(const Attributes& attributes, const Operands& inputs) {
  if (rank(inputs, 0) != 4 || rank(inputs, 1) != 4 || rank(inputs, 2) != 4) {
    return;
  }
  const std::int64_t group = attributes.integer("group");
  if (inputs[1].shape[1] * group != inputs[0].shape[2]) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op paged_attention: {} heads of queries in groups of {}, and {} heads of keys",
                            inputs[0].shape[2], group, inputs[1].shape[1]));
  }
}

ShardingRule paged_attention_rule(const Attributes& attributes, const Operands& inputs) {
  for (std::size_t i = 0; i < 3; ++i) {
    require_real("paged_attention", inputs, i);
  }
  require_places("paged_attention", inputs, 3);
  require_heads(attributes, inputs);
  ShardingRule rule = parse_rule("b t h d, p h s d, p h s d, b m, b t -> b t h d", {.whole = "d p s m"});
  const std::int64_t group = attributes.integer("group");
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    rule.windows.push_back({i, 1, {.divisor = group, .first = 1 - group}});
  }
  return rule;
}

/// Two products per pair of a query and a key, as if each query saw half of the positions that the table has room for.
std::int64_t paged_attention_flops(const OpShape& shape) {
  return 2 * element_count(shape.inputs[0]) * shape.inputs[3].shape[1] * shape.inputs[1].shape[2];
}

const RegisterOp write_pages(
    {.name = "write_pages",
     .help = "pages [pages, kv_heads, page, head_dim] with x [batch, seq, kv_heads, head_dim] "
             "at the positions [batch, seq], on the pages that table [batch, n] lists for each "
             "sequence; a position of -1 is not written",
     .rule = write_pages_rule,
     .stops_gradient = true,
     .flops = flops_per_element<0>,
     .in_place = {{0, 0}},
     .example = {.operands = {example({6, 2, 4, 8}), example({2, 3, 2, 8}), example({2, 3}, DType::i32),
                              example({2, 3}, DType::i32)}}});

const RegisterOp paged_attention(
    {.name = "paged_attention",
     .help = "attention of q [batch, seq, heads, head_dim] to the keys and values in pages [pages, kv_heads, page, "
             "head_dim] at positions up to each query's own; zeros for a position of -1; table [batch, n] and "
             "positions [batch, seq] as in write_pages",
     .attributes = {AttributeSpec::integer("group", "query heads that share a head of keys and values", 1,
                                           std::int64_t{1} << 30),
                    AttributeSpec::integer("window",
                                           "a query sees positions that are less than this before its own; 0: all", 0,
                                           std::int64_t{1} << 30),
                    AttributeSpec::real("scale", "the factor of the scores; 0 for 1 / sqrt(head_dim)")},
     .rule = paged_attention_rule,
     .stops_gradient = true,
     .flops = paged_attention_flops,
     .example = {.attributes = {{"group", std::int64_t{3}}, {"window", std::int64_t{0}}, {"scale", 0.0}},
                 .operands = {example({2, 3, 6, 8}), example({6, 2, 4, 8}), example({6, 2, 4, 8}),
                              example({2, 3}, DType::i32), example({2, 3}, DType::i32)}}});

}  // namespace
}  // namespace shardrun::graph
