// Implements ZipMap, CastMap, DictVectorizer (ai.onnx.ml 1): operators on maps.
#include <algorithm>
#include <charconv>
#include <string>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "ops/list.h"
#include "ops/ml/common.h"

namespace treadle::ops {
namespace {

// Makes a map for each row of X, from class labels to the elements of the row.
struct ZipMap {
  static constexpr bool allocates = true;
  static ZipMap bind(BindContext& c) {
    ClassLabels labels = ClassLabels::of(c.node().attributes, "classlabels_int64s");
    int64_t columns = rows_and_columns(c.shape(0)).second;
    if (columns != labels.count())
      throw Error(ErrorCode::invalid_argument, fmt::format("X has {} columns for {} class labels", columns, labels.count()));
    return {};
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<Labels>();
    state->labels = ClassLabels::of(c.attributes(), "classlabels_int64s");
    return state;
  }
  void run(RunContext& c) const {
    const ClassLabels& labels = c.packed<Labels>().labels;
    Tensor x = c.input(0).tensor().clone();  // cloned, because the maps refer to it
    auto [rows, columns] = rows_and_columns(x.shape());
    Sequence maps;
    maps.elements.reserve(static_cast<size_t>(rows));
    for (int64_t row = 0; row < rows; ++row) {
      Map map;
      if (labels.strings.empty())
        map.keys = labels.ints;
      else
        map.keys = labels.strings;
      map.values = Tensor(DType::float32, Shape{columns}, x.storage(), static_cast<size_t>(row * columns) * sizeof(float));
      maps.elements.emplace_back(std::move(map));
    }
    c.set_output(0, Datum(std::move(maps)));
  }
  struct Labels : PackedState {
    ClassLabels labels;
  };
};

void infer_zip_map(InferContext& c) {
  ClassLabels labels = ClassLabels::of(c.attributes(), "classlabels_int64s");
  c.set_output(0, Type::sequence(Type::map(labels.dtype(), DType::float32)));
}

DType cast_target(std::string_view name) {
  if (name == "TO_FLOAT") return DType::float32;
  if (name == "TO_INT64") return DType::int64;
  if (name == "TO_STRING") return DType::string;
  throw Error(ErrorCode::invalid_model, fmt::format("cast_to = \"{}\"; expected TO_FLOAT, TO_INT64 or TO_STRING", name));
}

// Parses a number. For an integer type, the fraction is ignored.
template <typename T>
T parse(const std::string& text) {
  T value{};
  const char *first = text.data(), *last = first + text.size();
  while (first != last && (*first == ' ' || *first == '+')) ++first;
  auto [end, error] = std::from_chars(first, last, value);
  if (std::is_integral_v<T> && error == std::errc() && end != last && *end == '.')
    end = std::find_if_not(end + 1, last, [](char c) { return c >= '0' && c <= '9'; });
  if (error != std::errc() || end != last)
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is not a number of type {}", text, name_of(dtype_of<T>)));
  return value;
}

template <typename From, typename To>
To converted(const From& value) {
  if constexpr (std::is_same_v<From, To>)
    return value;
  else if constexpr (std::is_same_v<From, std::string>)
    return parse<To>(value);
  else if constexpr (std::is_same_v<To, std::string>)
    return fmt::format("{}", value);
  else
    return static_cast<To>(value);
}

// Computes CastMap, which returns the values of a map with integer keys. Dense: in the order of the keys. Sparse: each value at the index
// that its key gives, with zeros elsewhere.
struct CastMap {
  static constexpr bool allocates = true;
  DType to;
  bool sparse;
  int64_t max_map;

  static CastMap bind(BindContext& c) {
    std::string_view form = c.get_string("map_form", "DENSE");
    if (form != "DENSE" && form != "SPARSE")
      throw Error(ErrorCode::invalid_model, fmt::format("map_form = \"{}\"; expected DENSE or SPARSE", form));
    return {cast_target(c.get_string("cast_to", "TO_FLOAT")), form == "SPARSE", c.get_int("max_map", 1)};
  }
  void run(RunContext& c) const {
    const Map& map = c.input(0).map();
    const auto* keys = std::get_if<std::vector<int64_t>>(&map.keys);
    if (!keys) throw Error(ErrorCode::invalid_argument, "the map's keys are strings; expected int64");
    std::vector<size_t> order(keys->size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return (*keys)[a] < (*keys)[b]; });
    int64_t count = sparse ? max_map : static_cast<int64_t>(order.size());
    Tensor out = c.allocate_output(0, Shape{1, count});
    visit_dtype<TypeList<float, int64_t, std::string>>(to, [&]<typename To>() {
      To* values = out.data<To>();
      std::fill_n(values, count, converted<int64_t, To>(0));
      visit_dtype<TypeList<float, std::string>>(map.values.dtype(), [&]<typename From>() {
        for (size_t i = 0; i < order.size(); ++i) {
          int64_t key = (*keys)[order[i]], place = sparse ? key : static_cast<int64_t>(i);
          if (place < 0 || place >= count)
            throw Error(ErrorCode::invalid_argument, fmt::format("the map has the key {}, which is outside [0, {})", key, count));
          values[place] = converted<From, To>(map.values.data<From>()[order[i]]);
        }
      });
    });
  }
};

void infer_cast_map(InferContext& c) {
  bool sparse = c.get_string("map_form", "DENSE") == "SPARSE";
  Dim count = sparse ? Dim(c.get_int("max_map", 1)) : c.data_dependent_dim("entries");
  c.set_output(0, cast_target(c.get_string("cast_to", "TO_FLOAT")), {Dim(1), count});
}

// Computes DictVectorizer: for each key of the vocabulary, the map's value, or zero (an empty string) if the map lacks the key.
struct DictVectorizer {
  static constexpr bool allocates = true;

  static DictVectorizer bind(BindContext&) { return {}; }
  struct Vocabulary : PackedState {
    std::vector<int64_t> ints;
    std::vector<std::string> strings;
  };
  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<Vocabulary>();
    state->ints = c.attributes().get_ints("int64_vocabulary");
    state->strings = c.attributes().get_strings("string_vocabulary");
    return state;
  }
  void run(RunContext& c) const {
    const auto& vocabulary = c.packed<Vocabulary>();
    const Map& map = c.input(0).map();
    if (vocabulary.strings.empty() != std::holds_alternative<std::vector<int64_t>>(map.keys))
      throw Error(ErrorCode::invalid_argument, "the map's keys and the vocabulary are of different types");
    auto fill = [&]<typename Key>(const std::vector<Key>& words) {
      const auto& keys = std::get<std::vector<Key>>(map.keys);
      Tensor out = c.allocate_output(0, Shape{1, static_cast<int64_t>(words.size())});
      visit_dtype<TypeList<float, double, int64_t, std::string>>(map.values.dtype(), [&]<typename V>() {
        V* y = out.data<V>();
        const V* values = map.values.data<V>();
        for (size_t i = 0; i < words.size(); ++i) {
          auto found = std::find(keys.begin(), keys.end(), words[i]);
          y[i] = found == keys.end() ? V{} : values[found - keys.begin()];
        }
      });
    };
    if (vocabulary.strings.empty())
      fill(vocabulary.ints);
    else
      fill(vocabulary.strings);
  }
};

void infer_dict_vectorizer(InferContext& c) {
  auto size = c.attributes().get_ints("int64_vocabulary").size() + c.attributes().get_strings("string_vocabulary").size();
  c.set_output(0, c.dtype(0), {Dim(1), Dim(size)});
}

}  // namespace

std::vector<OpDef> ml_maps_ops() {
  return {
      {.name = "ZipMap",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", {DType::float32}}},
       .outputs = {{"Z", kSequences}},
       .attributes = {{"classlabels_int64s"}, {"classlabels_strings"}},
       .infer = infer_zip_map,
       .kernels = {kernel<ZipMap>()}},
      {.name = "CastMap",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMaps}},
       .outputs = {{"Y", {DType::float32, DType::int64, DType::string}}},
       .attributes = {{"cast_to", std::string_view("TO_FLOAT")}, {"map_form", std::string_view("DENSE")}, {"max_map", int64_t{1}}},
       .infer = infer_cast_map,
       .kernels = {kernel<CastMap>()}},
      {.name = "DictVectorizer",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMaps}},
       .outputs = {{"Y", {DType::float32, DType::float64, DType::int64, DType::string}}},
       .attributes = {{"int64_vocabulary"}, {"string_vocabulary"}},
       .infer = infer_dict_vectorizer,
       .kernels = {kernel<DictVectorizer>()}},
  };
}

}  // namespace treadle::ops
