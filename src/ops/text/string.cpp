// Implements StringConcat, StringSplit, RegexFullMatch (opset 20).
#include <algorithm>

#include "core/threads/thread_pool.h"
#include "kernels/text/regex.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {
namespace {

constexpr int64_t kStringGrain = 256;

struct StringConcat {
  kernels::BroadcastPlan<2> plan;

  static StringConcat bind(BindContext& c) { return {plan_broadcast<2>(c, {0, 1})}; }
  void run(RunContext& c) const {
    kernels::broadcast_binary(plan, c.in<std::string>(0), c.in<std::string>(1), c.out<std::string>(0), c.pool(),
                              [](const std::string& head, const std::string& tail) { return head + tail; });
  }
};

void infer_concat(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(0, DType::string);
  c.set_output(0, DType::string, broadcast(c.shape(0), c.shape(1)));
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Calls fn(piece) for every piece, as Python's str.split does. An empty delimiter means runs of white space. As in onnxruntime, and unlike
/// in Python, an empty text has no pieces, for any delimiter.
template <typename Fn>
void for_pieces(std::string_view text, std::string_view delimiter, int64_t max_splits, Fn fn) {
  if (text.empty()) return;
  if (!delimiter.empty()) {
    for (int64_t splits = 0; splits < max_splits; ++splits) {
      size_t end = text.find(delimiter);
      if (end == std::string_view::npos) break;
      fn(text.substr(0, end));
      text.remove_prefix(end + delimiter.size());
    }
    return fn(text);
  }
  for (int64_t splits = 0;; ++splits) {
    size_t first = 0;
    while (first < text.size() && is_space(text[first])) ++first;
    text.remove_prefix(first);
    if (text.empty()) return;
    size_t end = 0;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (splits == max_splits) {  // the rest is one piece, without trailing white space
      while (is_space(text.back())) text.remove_suffix(1);
      return fn(text);
    }
    fn(text.substr(0, end));
    text.remove_prefix(end);
  }
}

struct StringSplit {
  static constexpr bool allocates = true;

  struct Options : PackedState {
    std::string delimiter;
    int64_t max_splits = INT64_MAX;
  };
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto options = std::make_unique<Options>();
    options->delimiter = c.attributes().get_string("delimiter");
    const int64_t most = c.attributes().get_int("maxsplit", -1);
    if (most >= 0) options->max_splits = most;
    return options;
  }
  bool wants_pieces, wants_counts;
  static StringSplit bind(BindContext& c) { return {c.has_output(0), c.has_output(1)}; }

  void run(RunContext& c) const {
    const auto& options = c.packed<Options>();
    const Tensor& x = c.input(0).tensor();
    std::span<std::string> texts = x.span<std::string>();
    std::vector<int64_t> counts(texts.size());
    for (size_t i = 0; i < texts.size(); ++i)
      for_pieces(texts[i], options.delimiter, options.max_splits, [&](std::string_view) { ++counts[i]; });
    if (wants_counts) std::copy(counts.begin(), counts.end(), c.allocate_output(1, x.shape()).data<int64_t>());
    if (!wants_pieces) return;
    int64_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    Shape shape = x.shape();
    shape.push_back(most);
    auto* out = c.allocate_output(0, shape).data<std::string>();
    for (size_t i = 0; i < texts.size(); ++i, out += most) {
      auto* next = out;
      for_pieces(texts[i], options.delimiter, options.max_splits, [&](std::string_view piece) { next++->assign(piece); });
    }
  }
};

void infer_split(InferContext& c) {
  c.set_output_dtype(0, DType::string);
  c.set_output_dtype(1, DType::int64);
  if (!c.has_rank(0)) return;
  SymbolicShape shape = c.shape(0);
  c.set_output(1, DType::int64, shape);
  shape.push_back(c.data_dependent_dim("pieces"));
  c.set_output(0, DType::string, std::move(shape));
}

struct RegexFullMatch {
  int64_t total;

  struct Pattern : PackedState {
    kernels::Regex regex;
    explicit Pattern(std::string_view text) : regex(text) {}
  };
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    return std::make_unique<Pattern>(c.attributes().get_string("pattern"));
  }
  static RegexFullMatch bind(BindContext& c) { return {c.num_elements(0)}; }

  void run(RunContext& c) const {
    const auto* x = c.in<std::string>(0);
    bool* y = c.out<bool>(0);
    parallel_for(c.pool(), total, kStringGrain, [&](int64_t begin, int64_t end) {
      kernels::RegexMatcher matcher(c.packed<Pattern>().regex);
      for (int64_t i = begin; i < end; ++i) y[i] = matcher.full_match(x[i]);
    });
  }
};

void infer_match(InferContext& c) {
  if (c.has_rank(0))
    c.set_output(0, DType::boolean, c.shape(0));
  else
    c.set_output_dtype(0, DType::boolean);
}

Cost cost(const ShapeContext& c) { return {.flops = 100 * static_cast<double>(c.num_elements(0)), .bytes = 2 * c.size_bytes(0)}; }

}  // namespace

std::vector<OpDef> string_ops() {
  return {
      {.name = "StringConcat",
       .since = {20},
       .inputs = {{"X", kString, "T"}, {"Y", kString, "T"}},
       .outputs = {{"Z", kString, "T"}},
       .infer = infer_concat,
       .cost = cost,
       .kernels = {kernel<StringConcat>()}},
      {.name = "StringSplit",
       .since = {20},
       .inputs = {{"X", kString}},
       .outputs = {{"Y", kString}, {"Z", kInt64}},
       .attributes = {{"delimiter"}, {"maxsplit"}},
       .infer = infer_split,
       .cost = cost,
       .kernels = {kernel<StringSplit>()}},
      {.name = "RegexFullMatch",
       .since = {20},
       .inputs = {{"X", kString}},
       .outputs = {{"Y", kBool}},
       .attributes = {{"pattern"}},
       .infer = infer_match,
       .cost = cost,
       .kernels = {kernel<RegexFullMatch>()}},
  };
}

}  // namespace treadle::ops
