// Implements StringNormalizer (opset 10), TfIdfVectorizer (opset 9).
#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "core/values/dispatch.h"
#include "kernels/text/case.h"
#include "kernels/text/ngrams.h"
#include "ops/list.h"
#include "ops/ml/common.h"

namespace treadle::ops {
namespace {

// Removes stop words, and changes the case of the other elements. An element is compared as a whole. If case is ignored, element and stop
// word are first converted to the output's case, or to lower case if the output's case is unchanged.
struct StringNormalizer {
  static constexpr bool allocates = true;
  enum class Action : uint8_t { none, lower, upper };

  struct Options : PackedState {
    Action action = Action::none;
    bool case_sensitive = false;
    std::unordered_set<std::string> stopwords;
    kernels::CaseMapper mapper;

    explicit Options(std::string_view locale) : mapper(locale) {}
    std::string mapped(Action how, const std::string& text) const {
      if (how == Action::none) return text;
      return how == Action::lower ? mapper.lower(text) : mapper.upper(text);
    }
    Action comparison() const { return case_sensitive ? Action::none : action == Action::none ? Action::lower : action; }
  };

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    auto options = std::make_unique<Options>(a.get_string("locale"));
    std::string_view action = a.get_string("case_change_action", "NONE");
    if (action == "LOWER")
      options->action = Action::lower;
    else if (action == "UPPER")
      options->action = Action::upper;
    else if (action != "NONE")
      throw Error(ErrorCode::invalid_model, fmt::format("case_change_action = \"{}\"; expected LOWER, UPPER or NONE", action));
    options->case_sensitive = a.get_int("is_case_sensitive", 0) != 0;
    for (const std::string& word : a.get_strings("stopwords")) options->stopwords.insert(options->mapped(options->comparison(), word));
    return options;
  }
  static StringNormalizer bind(BindContext&) { return {}; }

  void run(RunContext& c) const {
    const auto& options = c.packed<Options>();
    const Tensor& x = c.input(0).tensor();
    check_shape(x.shape());
    std::vector<const std::string*> kept;
    for (const std::string& text : x.span<std::string>())
      if (options.stopwords.empty() || !options.stopwords.contains(options.mapped(options.comparison(), text))) kept.push_back(&text);
    Shape shape = x.shape();
    // If all elements were removed, the result is one empty string.
    shape[shape.rank() - 1] = std::max<int64_t>(1, static_cast<int64_t>(kept.size()));
    Tensor y = c.allocate_output(0, shape);
    for (size_t i = 0; i < kept.size(); ++i) y.data<std::string>()[i] = options.mapped(options.action, *kept[i]);
  }
  static void check_shape(const Shape& shape) {
    if (shape.rank() != 1 && !(shape.rank() == 2 && shape[0] == 1))
      throw Error(ErrorCode::invalid_argument, fmt::format("X has the shape {}; expected [C] or [1,C]", to_string(shape)));
  }
};

void infer_normalizer(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::string);
  if (c.rank(0) != 1 && c.rank(0) != 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("X has {} axes; expected [C] or [1,C]", c.rank(0)));
  SymbolicShape shape = c.shape(0);
  bool keeps_all = c.attributes().get_strings("stopwords").empty() && shape.back().is_const() && shape.back().value() > 0;
  if (!keeps_all) shape.back() = c.data_dependent_dim("words");
  c.set_output(0, DType::string, std::move(shape));
}

// Counts in each row of tokens how often the n-grams of the pool occur.
template <typename Token>
struct TfIdfVectorizer {
  int64_t rows, columns, width;

  struct Model : PackedState {
    kernels::NgramIndex<std::conditional_t<std::is_same_v<Token, std::string>, std::string, int64_t>> index;
    std::vector<float> weights;    // weight of each n-gram; empty if all are 1
    std::vector<int64_t> columns;  // output column of each n-gram, if there are weights; empty: 0, 1, 2 …
    bool shared = false;           // some n-grams share a column, so the index returns their positions in the pool
    bool truncate = false;         // true: counts above 1 are stored as 1
    kernels::NgramWindow window;
  };

  static int64_t output_width(const Attributes& a) {
    const auto& columns = a.get_ints("ngram_indexes");
    if (columns.empty()) throw Error(ErrorCode::invalid_model, "ngram_indexes is empty");
    // Keeps four maxima, so that no step waits for the previous one. The loop is executed in every run if the number of rows is known only
    // then.
    std::array<int64_t, 4> widths{};
    int64_t signs = 0;
    for (size_t i = 0; i < columns.size(); ++i) {
      widths[i % widths.size()] = std::max(widths[i % widths.size()], columns[i]);
      signs |= columns[i];
    }
    if (signs < 0) throw Error(ErrorCode::invalid_model, "ngram_indexes holds a negative number");
    return checked_add(*std::max_element(widths.begin(), widths.end()), 1);
  }

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    if (a.has("pool_int64s") == a.has("pool_strings"))
      throw Error(ErrorCode::invalid_model, "just one of pool_int64s and pool_strings must be given");
    auto model = std::make_unique<Model>();
    model->window = {a.get_int("min_gram_length", 1), a.get_int("max_gram_length", 1), a.get_int("max_skip_count", 0)};
    const auto& w = model->window;
    if (w.shortest < 1 || w.longest < w.shortest || w.max_skips < 0)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("min_gram_length = {}, max_gram_length = {}, max_skip_count = {}", w.shortest, w.longest, w.max_skips));
    std::string_view mode = a.get_string("mode");
    if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
      throw Error(ErrorCode::invalid_model, fmt::format("mode = \"{}\"; expected TF, IDF or TFIDF", mode));
    model->truncate = mode == "IDF";
    if (mode != "TF") model->weights = a.get_floats("weights");
    const auto& starts = a.get_ints("ngram_counts");
    const std::vector<int64_t> numbers = place_weights(*model, a.get_ints("ngram_indexes"));
    if constexpr (std::is_same_v<Token, std::string>)
      model->index.build(a.get_strings("pool_strings"), starts, numbers, w);
    else
      model->index.build(a.get_ints("pool_int64s"), starts, numbers, w);
    return model;
  }

  // Returns the number that the index has for each n-gram: its output column, or its position in the pool if columns are shared.
  static std::vector<int64_t> place_weights(Model& model, const std::vector<int64_t>& columns) {
    if (model.weights.empty()) return columns;
    if (model.weights.size() != columns.size())
      throw Error(ErrorCode::invalid_model, fmt::format("weights has {} elements for {} n-grams", model.weights.size(), columns.size()));
    std::vector<int64_t> places(columns.size());
    std::iota(places.begin(), places.end(), 0);
    if (columns == places) return columns;
    model.columns = columns;
    std::vector<int64_t> sorted = columns;
    std::sort(sorted.begin(), sorted.end());
    model.shared = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    return model.shared ? places : columns;
  }

  static TfIdfVectorizer bind(BindContext& c) {
    const Shape& x = c.shape(0);
    auto [rows, columns] = x.rank() == 0 ? std::pair<int64_t, int64_t>{1, 1} : rows_and_columns(x);
    return {rows, columns, c.output_shape(0).back()};
  }

  void run(RunContext& c) const {
    const auto& model = c.packed<Model>();
    const auto* x = c.in<Token>(0);
    auto* y = c.out<float>(0);
    parallel_for(c.pool(), rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* counts = y + row * width;
        std::fill_n(counts, width, 0.0F);
        if (model.shared) {
          add_ngrams(model, x + row * columns, counts);
          continue;
        }
        model.index.count(x + row * columns, columns, model.window, [&](int64_t column) { counts[column] += 1; });
        if (model.truncate)
          for (int64_t k = 0; k < width; ++k) counts[k] = std::min(counts[k], 1.0F);
        for (size_t i = 0; i < model.weights.size(); ++i)
          counts[model.columns.empty() ? static_cast<int64_t>(i) : model.columns[i]] *= model.weights[i];
      }
    });
  }
  // Counts each n-gram, multiplies the count by the n-gram's weight, and adds it to its column.
  void add_ngrams(const Model& model, const Token* row, float* sums) const {
    std::vector<float> counts(model.columns.size());
    model.index.count(row, columns, model.window, [&](int64_t ngram) { counts[static_cast<size_t>(ngram)] += 1; });
    for (size_t i = 0; i < counts.size(); ++i)
      sums[model.columns[i]] += (model.truncate ? std::min(counts[i], 1.0F) : counts[i]) * model.weights[i];
  }
};

void infer_vectorizer(InferContext& c) {
  Dim width(TfIdfVectorizer<std::string>::output_width(c.attributes()));
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::float32);
  if (c.rank(0) > 2) throw Error(ErrorCode::invalid_argument, fmt::format("X has {} axes; expected [C] or [N,C]", c.rank(0)));
  c.set_output(0, DType::float32, c.rank(0) == 2 ? SymbolicShape{c.shape(0)[0], width} : SymbolicShape{width});
}

Cost cost(const ShapeContext& c) { return {.flops = 100 * static_cast<double>(c.num_elements(0)), .bytes = 2 * c.size_bytes(0)}; }

// The number of operations is proportional to the number of distances (skips) between the tokens of an n-gram.
Cost vectorizer_cost(const ShapeContext& c) {
  const Shape& x = c.shape(0);
  const auto columns = static_cast<double>(x.rank() == 0 ? 1 : x.back());
  const double distances = std::min(static_cast<double>(c.get_int("max_skip_count", 0)) + 1, std::max(columns, 1.0));
  return {.flops = 100 * distances * static_cast<double>(c.num_elements(0)), .bytes = 2 * c.size_bytes(0)};
}

}  // namespace

std::vector<OpDef> text_ops() {
  using Required = AttributeDef::Required;
  return {
      {.name = "StringNormalizer",
       .since = {10},
       .inputs = {{"X", kString}},
       .outputs = {{"Y", kString}},
       .attributes = {{"case_change_action", std::string_view("NONE")}, {"is_case_sensitive", int64_t{0}}, {"locale"}, {"stopwords"}},
       .infer = infer_normalizer,
       .cost = cost,
       .kernels = {kernel<StringNormalizer>()}},
      {.name = "TfIdfVectorizer",
       .since = {9},
       .inputs = {{"X", kString | kInt32Or64}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"max_gram_length", Required{}},
                      {"max_skip_count", Required{}},
                      {"min_gram_length", Required{}},
                      {"mode", Required{}},
                      {"ngram_counts", Required{}},
                      {"ngram_indexes", Required{}},
                      {"pool_int64s"},
                      {"pool_strings"},
                      {"weights"}},
       .infer = infer_vectorizer,
       .cost = vectorizer_cost,
       .kernels = typed<TfIdfVectorizer, std::string, int32_t, int64_t>()},
  };
}

}  // namespace treadle::ops
