// Implements LabelEncoder (ai.onnx.ml 1, 2, 4), CategoryMapper (1), OneHotEncoder (1), ArrayFeatureExtractor (1), FeatureVectorizer (1).
#include <algorithm>
#include <cmath>

#include "core/threads/thread_pool.h"
#include "ops/list.h"
#include "ops/ml/common.h"
#include "ops/ml/mapping.h"
#include "ops/rank_branches.h"
#include "ops/tensor/gather.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kKeyTypes{DType::string, DType::int64, DType::int32, DType::int16, DType::float32, DType::float64};
constexpr int64_t kGrain = 4096;

Tensor strings_tensor(const std::vector<std::string>& values) {
  return Tensor::strings(Shape{static_cast<int64_t>(values.size())}, values);
}

/// Reads a list from one of the attributes `stem`_tensor, `stem`_strings, `stem`_int64s and `stem`_floats. Exactly one of them must be
/// given. @throws Error(invalid_model) otherwise.
Tensor read_list(const Attributes& a, const std::string& stem) {
  std::vector<Tensor> found;
  if (a.has(stem + "_tensor")) found.push_back(a.get_tensor(stem + "_tensor"));
  if (!a.get_strings(stem + "_strings").empty()) found.push_back(strings_tensor(a.get_strings(stem + "_strings")));
  if (!a.get_ints(stem + "_int64s").empty()) found.push_back(Tensor::vector<int64_t>(a.get_ints(stem + "_int64s")));
  if (!a.get_floats(stem + "_floats").empty()) found.push_back(Tensor::vector<float>(a.get_floats(stem + "_floats")));
  if (found.size() != 1)
    throw Error(ErrorCode::invalid_model,
                fmt::format("{} attributes give the {}; expected one of {}_tensor, {}_strings, {}_int64s and {}_floats", found.size(), stem,
                            stem, stem, stem, stem));
  return found.front().contiguous();
}

/// Returns the value, a tensor of one element, that the operator gives for keys that are not in its list.
Tensor read_default(const Attributes& a, DType dtype) {
  if (a.has("default_tensor")) {
    const Tensor& given = a.get_tensor("default_tensor");
    if (given.dtype() != dtype || given.num_elements() != 1)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("default_tensor is {}; expected one element of {}, as the values", describe(given), name_of(dtype)));
    return given.contiguous();
  }
  return visit_dtype<MlKeyTypes>(dtype, [&]<typename V>() {
    if constexpr (std::is_same_v<V, std::string>) {
      return Tensor::scalar(std::string(a.get_string("default_string", "_Unused")));
    } else if constexpr (std::is_integral_v<V>) {
      return Tensor::scalar(static_cast<V>(a.get_int("default_int64", -1)));
    } else {
      return Tensor::scalar(static_cast<V>(a.get_float("default_float", -0.0F)));
    }
  });
}

struct MapElements {
  int64_t total;
  DType from, to;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    if (c.node().op_type == "CategoryMapper") {
      Tensor strings = strings_tensor(a.get_strings("cats_strings")), ints = Tensor::vector<int64_t>(a.get_ints("cats_int64s"));
      if (c.dtype(0) == DType::string) return std::make_unique<Mapping>(strings, ints, read_default(a, DType::int64));
      return std::make_unique<Mapping>(ints, strings, read_default(a, DType::string));
    }
    Tensor values = read_list(a, "values");
    Tensor otherwise = read_default(a, values.dtype());
    auto mapping = std::make_unique<Mapping>(read_list(a, "keys"), std::move(values), std::move(otherwise), true);
    if (mapping->keys.dtype() != c.dtype(0))
      throw Error(ErrorCode::invalid_model,
                  fmt::format("the keys are {}, the input is {}", name_of(mapping->keys.dtype()), name_of(c.dtype(0))));
    return mapping;
  }
  static MapElements bind(BindContext& c) { return {c.num_elements(0), c.dtype(0), c.output_dtype(0)}; }

  // Looks up the positions of a block of keys before it copies their values. So code is needed for each dtype of keys and each dtype of
  // values, but not for each pair.
  void run(RunContext& c) const {
    const auto& mapping = c.packed<Mapping>();
    parallel_for(c.pool(), total, kGrain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 256;
      int64_t positions[kBlock];
      for (int64_t first = begin; first < end; first += kBlock) {
        int64_t count = std::min(kBlock, end - first);
        visit_dtype<MlKeyTypes>(from, [&]<typename K>() {
          for (int64_t i = 0; i < count; ++i) positions[i] = mapping.keys.find(c.in<K>(0)[first + i]);
        });
        visit_dtype<MlKeyTypes>(to, [&]<typename V>() {
          const V *values = mapping.values.data<V>(), *otherwise = mapping.otherwise.data<V>();
          V* out = c.out<V>(0) + first;
          for (int64_t i = 0; i < count; ++i) out[i] = positions[i] == Lookup::kAbsent ? *otherwise : values[positions[i]];
        });
      }
    });
  }
};

void infer_label_encoder(InferContext& c) {
  DType dtype = read_list(c.attributes(), "values").dtype();
  if (c.has_rank(0))
    c.set_output(0, dtype, c.shape(0));
  else
    c.set_output_dtype(0, dtype);
}

void infer_category_mapper(InferContext& c) {
  DType dtype = c.dtype(0) == DType::undefined ? DType::undefined : c.dtype(0) == DType::string ? DType::int64 : DType::string;
  if (c.has_rank(0))
    c.set_output(0, dtype, c.shape(0));
  else
    c.set_output_dtype(0, dtype);
}

// Upgrades LabelEncoder of version 1, which maps strings to their positions in classes_strings, or positions to the strings, depending on
// the dtype of the input.
void upgrade_label_encoder_1(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  std::vector<std::string> classes = node.attributes.get_strings("classes_strings");
  std::vector<int64_t> positions;
  for (size_t i = 0; i < classes.size(); ++i) positions.push_back(static_cast<int64_t>(i));
  DType dtype = graph.type(node.inputs.at(0)).dtype;
  node.attributes.erase("classes_strings");
  if (dtype == DType::undefined) throw Error(ErrorCode::not_implemented, "LabelEncoder of version 1 needs an input of known type");
  bool from_string = dtype == DType::string;
  // If a class is repeated, version 1 uses its last position, but later versions use the first of repeated keys. So the lists are reversed.
  if (from_string) std::reverse(classes.begin(), classes.end()), std::reverse(positions.begin(), positions.end());
  node.attributes.set(from_string ? "keys_strings" : "values_strings", std::move(classes));
  node.attributes.set(from_string ? "values_int64s" : "keys_int64s", std::move(positions));
}

int64_t num_categories(const Attributes& a) {
  return static_cast<int64_t>(std::max(a.get_ints("cats_int64s").size(), a.get_strings("cats_strings").size()));
}

template <typename X>
struct OneHotEncoder {
  int64_t total, categories;
  bool zeros;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    const Attributes& a = c.attributes();
    if (a.get_ints("cats_int64s").empty() == a.get_strings("cats_strings").empty())
      throw Error(ErrorCode::invalid_model, "just one of cats_int64s and cats_strings must be given");
    bool strings = a.get_ints("cats_int64s").empty();
    if (strings != std::is_same_v<X, std::string>)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("the categories are {}, the input is {}", strings ? "strings" : "integers", name_of(dtype_of<X>)));
    return std::make_unique<CategoryLookup>(strings ? strings_tensor(a.get_strings("cats_strings"))
                                                    : Tensor::vector<int64_t>(a.get_ints("cats_int64s")));
  }
  static OneHotEncoder bind(BindContext& c) { return {c.num_elements(0), num_categories(c.node().attributes), c.get_int("zeros", 1) != 0}; }

  void run(RunContext& c) const {
    const auto& lookup = c.packed<CategoryLookup>().lookup;
    const X* x = c.in<X>(0);
    auto* y = c.out<float>(0);
    parallel_for(c.pool(), total, kGrain, [&](int64_t begin, int64_t end) {
      std::fill(y + begin * categories, y + end * categories, 0.0F);
      for (int64_t i = begin; i < end; ++i) {
        int64_t position;
        if constexpr (std::is_floating_point_v<X>)
          position = std::abs(x[i]) < X{9.0e18} ? lookup.find(static_cast<int64_t>(x[i])) : Lookup::kAbsent;
        else if constexpr (std::is_integral_v<X>)
          position = lookup.find(static_cast<int64_t>(x[i]));
        else
          position = lookup.find(x[i]);
        if (position != Lookup::kAbsent)
          y[i * categories + position] = 1;
        else if (!zeros)
          throw Error(ErrorCode::invalid_argument, fmt::format("element {} of X, {}, is none of the {} categories", i, x[i], categories));
      }
    });
  }
};

void infer_one_hot(InferContext& c) {
  if (!c.has_rank(0)) return c.set_output_dtype(0, DType::float32);
  SymbolicShape shape = c.shape(0);
  shape.emplace_back(num_categories(c.attributes()));
  c.set_output(0, DType::float32, std::move(shape));
}

}  // namespace

GatherExtents GatherExtents::of_features(const BindContext& c) {
  const Shape& x = c.shape(0);
  if (x.rank() == 0) throw Error(ErrorCode::invalid_argument, "X is a scalar; expected at least one axis");
  return {x.product(0, x.rank() - 1), x.back(), 1, c.num_elements(1)};
}

namespace {

// Computes Z[..., j] = X[..., Y[j]]; a vector X is one row. Negative indices count from the end, as in ONNX's reference. Converters of
// radius-neighbors models rely on this: they pad with -1 and give the padding the weight 0.
struct ArrayFeatureExtractor : GatherExtents {
  DType dtype;

  static ArrayFeatureExtractor bind(BindContext& c) { return {of_features(c), c.dtype(0)}; }
  void run(RunContext& c) const {
    const int64_t rows = outer, columns = extent, count = num_indices;
    const auto* indices = c.in<int64_t>(1);
    for (int64_t j = 0; j < count; ++j)
      if (indices[j] < -columns || indices[j] >= columns)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("index {} of Y is {}, which is outside [-{}, {})", j, indices[j], columns, columns));
    auto copy = [&]<typename T>() {
      const T* x = c.in<T>(0);
      T* z = c.out<T>(0);
      constexpr int64_t kTogether = 4;  // rows gathered together, to read each index once
      int64_t row = 0;
      for (; row + kTogether <= rows; row += kTogether, x += kTogether * columns, z += kTogether * count)
        for (int64_t j = 0; j < count; ++j) {
          const int64_t column = indices[j] + (indices[j] < 0 ? columns : 0);
          for (int64_t r = 0; r < kTogether; ++r) z[r * count + j] = x[r * columns + column];
        }
      for (; row < rows; ++row, x += columns, z += count)
        for (int64_t j = 0; j < count; ++j) z[j] = x[indices[j] + (indices[j] < 0 ? columns : 0)];
    };
    if (dtype == DType::string)
      copy.template operator()<std::string>();
    else
      visit_element_size(dtype, copy);
  }
};

void infer_extractor(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape shape = c.shape(0);
  if (shape.empty()) throw Error(ErrorCode::invalid_argument, "X is a scalar; expected at least one axis");
  if (shape.size() == 1) shape.insert(shape.begin(), Dim(1));
  shape.back() = product(c.shape(1));
  c.set_output(0, c.dtype(0), std::move(shape));
}

// Concatenates the rows of all inputs as float32. inputdimensions has the number of columns for each input: longer rows are cut, and
// shorter rows are padded with zeros.
void decompose_feature_vectorizer(Graph& graph, NodeId id) {
  std::vector<int64_t> widths = graph.node(id).attributes.get_ints("inputdimensions");
  std::vector<ValueId> inputs = graph.node(id).inputs, columns;
  if (!widths.empty() && widths.size() != inputs.size())
    throw Error(ErrorCode::invalid_model, fmt::format("inputdimensions has {} elements for {} inputs", widths.size(), inputs.size()));
  NodeWriter w(graph, id, graph.node(id).name);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type type = graph.type(inputs[i]);  // NOLINT(performance-unnecessary-copy-initialization): adding nodes moves types
    ValueId x = type.dtype != DType::float32 ? w.cast(inputs[i], DType::float32) : inputs[i];
    // A vector is one row. Rows with several axes are flattened.
    if (type.has_rank() && type.rank() == 1)
      x = w.op("Unsqueeze", {x, w.ints({0})});
    else if (type.has_rank() && type.rank() > 2)
      x = w.op("Flatten", {x}, {{"axis", int64_t{1}}});
    else if (!type.has_rank())
      x = by_rank(w, {x}, {0}, {1, kAnyRank}, [](NodeWriter& inside, const std::vector<ValueId>& v) {
        if (inside.rank(v[0]) == 1) return std::vector{inside.op("Unsqueeze", {v[0], inside.ints({0})})};
        return std::vector{inside.op("Flatten", {v[0]}, {{"axis", int64_t{1}}})};
      })[0];
    bool fits = widths.empty() || (type.has_rank() && type.rank() > 0 && type.rank() < 3 && type.shape->back().is_const(widths[i]));
    if (!fits) {
      x = w.op("Pad", {x, w.ints({0, 0, 0, widths[i]})});
      x = w.op("Slice", {x, w.ints({0}), w.ints({widths[i]}), w.ints({1})});
    }
    columns.push_back(x);
  }
  const ValueId joined = w.op("Concat", columns, {{"axis", int64_t{1}}});
  graph.replace_uses(graph.node(id).outputs[0], joined);
  graph.remove_node(id);
}

void infer_feature_vectorizer(InferContext& c) {
  Dim width = 0;
  const auto& widths = c.get_ints("inputdimensions");
  for (int i = 0; i < c.num_inputs(); ++i) {
    if (!widths.empty() && static_cast<size_t>(i) < widths.size())
      width = width + Dim(widths[static_cast<size_t>(i)]);
    else if (c.has_rank(i) && c.rank(i) > 0 && c.rank(i) < 3)
      width = width + c.shape(i).back();
    else
      return c.set_output_dtype(0, DType::float32);
  }
  set_row_output(c, 0, DType::float32, width);
}

Cost cost(const ShapeContext& c) { return {.flops = 10 * static_cast<double>(c.num_elements(0)), .bytes = 2 * c.size_bytes(0)}; }

}  // namespace

std::vector<OpDef> ml_encoders_ops() {
  constexpr TypeSet kCells = kMlNumbers | kString;
  return {
      {.name = "LabelEncoder",
       .domain = kMlDomain,
       .since = {1, 2, 4},
       .upgrade = {{1, upgrade_label_encoder_1}},
       .inputs = {{"X", kKeyTypes}},
       .outputs = {{"Y", kKeyTypes}},
       .attributes = {{"classes_strings"},
                      {"default_float", -0.0F},
                      {"default_int64", int64_t{-1}},
                      {"default_string", std::string_view("_Unused")},
                      {"default_tensor"},
                      {"keys_floats"},
                      {"keys_int64s"},
                      {"keys_strings"},
                      {"keys_tensor"},
                      {"values_floats"},
                      {"values_int64s"},
                      {"values_strings"},
                      {"values_tensor"}},
       .infer = infer_label_encoder,
       .cost = cost,
       .kernels = {kernel<MapElements>()}},
      {.name = "CategoryMapper",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kLabels}},
       .outputs = {{"Y", kLabels}},
       .attributes = {{"cats_int64s"}, {"cats_strings"}, {"default_int64", int64_t{-1}}, {"default_string", std::string_view("_Unused")}},
       .infer = infer_category_mapper,
       .cost = cost,
       .kernels = {kernel<MapElements>()}},
      {.name = "OneHotEncoder",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kCells}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"cats_int64s"}, {"cats_strings"}, {"zeros", int64_t{1}}},
       .infer = infer_one_hot,
       .cost = cost,
       .kernels = typed<OneHotEncoder, float, double, int32_t, int64_t, std::string>()},
      {.name = "ArrayFeatureExtractor",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kCells, "T"}, {"Y", kInt64}},
       .outputs = {{"Z", kCells, "T"}},
       .infer = infer_extractor,
       .kernels = {kernel<ArrayFeatureExtractor>()}},
      {.name = "FeatureVectorizer",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers, "", Presence::variadic}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"inputdimensions"}},
       .infer = infer_feature_vectorizer,
       .decompose = decompose_feature_vectorizer},
  };
}

}  // namespace treadle::ops
