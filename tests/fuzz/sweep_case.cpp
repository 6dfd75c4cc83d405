#include "tests/fuzz/sweep_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "core/values/float_types.h"
#include "graph/attributes.h"
#include "graph/custom_ops.h"

namespace treadle::fuzz {
namespace {

constexpr int64_t kMaxElements = 2048;
constexpr int64_t kHardIntegers[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX,  int64_t{1} << 62,          -(int64_t{1} << 62), int64_t{1} << 32,
                                     INT32_MAX, INT32_MIN,     UINT32_MAX, 6'148'914'691'236'517'206, 1'000'000'007,       65'536};
constexpr std::string_view kTexts[] = {"",       "a",       "NOTSET", "linear", "ij,jk->ik", "...i->i",
                                       "Relu 0", "Add 0 1", "1",      "-1",     "\xff",      "abc def"};

class CaseMaker {
 public:
  CaseMaker(uint64_t seed, const std::vector<const OpDef*>& ops) : random_(seed * 0x9E3779B97F4A7C15U + 1) {
    case_.op = ops[below(ops.size())];
  }

  SweepCase make() {
    const OpDef& op = *case_.op;
    case_.version = op.since.empty() ? 1 : one_in(6) ? op.since[below(op.since.size())] : op.since.back();
    case_.optimized = one_in(3);
    for (int axis = 0, rank = static_cast<int>(below(5)); axis < rank; ++axis) base_.push_back(extent());
    make_inputs();
    make_outputs();
    for (const AttributeDef& def : op.attributes) make_attribute(def);
    return std::move(case_);
  }

 private:
  uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  int64_t extent() {
    static constexpr int64_t kExtents[] = {0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 7, 8, 16, 17, 33};
    return kExtents[below(std::size(kExtents))];
  }
  int64_t integer() {
    if (one_in(24)) return kHardIntegers[below(std::size(kHardIntegers))];
    return one_in(6) ? static_cast<int64_t>(below(40)) - 20 : static_cast<int64_t>(below(7)) - 2;
  }
  double real() {
    static constexpr double kHard[] = {0, -0.0, 1e30, -1e30, 1e-40, INFINITY, -INFINITY, NAN, 2147483648.0, -9.3e18, 0.5, 1e10};
    return one_in(10) ? kHard[below(std::size(kHard))] : (static_cast<double>(below(2001)) - 1000) / 250;
  }

  // Returns a random shape. Most are derived from the case's base shape, so that operands fit to each other.
  Shape shape(Ranks ranks) {
    const int least = std::clamp(ranks.least, 0, 6), most = std::clamp(ranks.most, least, std::max(least, 6));
    std::vector<int64_t> dims = base_;
    switch (below(8)) {
      case 0: dims.clear(); break;
      case 1:
        for (int64_t& dim : dims)
          if (one_in(2)) dim = 1;
        break;
      case 2: dims.erase(dims.begin(), dims.begin() + static_cast<int64_t>(below(dims.size() + 1))); break;
      case 3: dims.assign(1, dims.empty() ? extent() : dims[below(dims.size())]); break;
      case 4:
        dims.clear();
        for (uint64_t i = below(5); i > 0; --i) dims.push_back(extent());
        break;
      case 5: std::reverse(dims.begin(), dims.end()); break;
      default: break;
    }
    if (!one_in(20)) {
      while (static_cast<int>(dims.size()) < least) dims.insert(dims.begin() + static_cast<int64_t>(below(dims.size() + 1)), extent());
      while (static_cast<int>(dims.size()) > most) dims.pop_back();
    }
    int64_t count = 1;
    for (int64_t& dim : dims) {
      if (dim > 0 && count * dim > kMaxElements) dim = 1;
      count *= std::max<int64_t>(dim, 1);
    }
    return Shape(std::span<const int64_t>(dims));
  }

  template <typename T, typename F>
  void each(Tensor& tensor, F f) {
    for (T& element : tensor.span<T>()) element = static_cast<T>(f());
  }
  void fill(Tensor& tensor) {
    const bool small = one_in(2), constant = one_in(4);
    const int64_t all = integer();
    auto number = [&] { return constant ? all : small ? static_cast<int64_t>(below(4)) : integer(); };
    auto half = [&] { return static_cast<float>(real()); };
    switch (tensor.dtype()) {
      case DType::float32: return each<float>(tensor, [&] { return static_cast<float>(real()); });
      case DType::float64: return each<double>(tensor, [&] { return real(); });
      case DType::float16: return each<Float16>(tensor, half);
      case DType::bfloat16: return each<BFloat16>(tensor, half);
      case DType::int64: return each<int64_t>(tensor, number);
      case DType::int32: return each<int32_t>(tensor, number);
      case DType::boolean: return each<bool>(tensor, [&] { return below(2); });
      case DType::string: return each<std::string>(tensor, [&] { return std::string(kTexts[below(std::size(kTexts))]); });
      default: {
        auto* bytes = reinterpret_cast<uint8_t*>(tensor.raw());
        for (size_t i = 0; i < tensor.size_bytes(); ++i) bytes[i] = static_cast<uint8_t>(one_in(2) ? below(4) : random_());
      }
    }
  }

  DType dtype_of_set(TypeSet types) {
    std::vector<DType> dtypes;
    for (int i = 1; i < kNumDTypes; ++i)
      if (types.has(static_cast<DType>(i))) dtypes.push_back(static_cast<DType>(i));
    if (dtypes.empty() || one_in(60)) return static_cast<DType>(1 + below(kNumDTypes - 1));
    if (types.has(DType::float32) && one_in(2)) return DType::float32;
    return dtypes[below(dtypes.size())];
  }

  Tensor tensor(DType dtype, Ranks ranks) {
    Tensor made(dtype, shape(ranks));
    fill(made);
    return made;
  }

  SparseTensor sparse(DType dtype) {
    SparseTensor made;
    made.dense_shape = Shape{1 + static_cast<int64_t>(below(4)), 1 + static_cast<int64_t>(below(4))};
    const auto count = static_cast<int64_t>(below(static_cast<uint64_t>(made.dense_shape.num_elements()) + 1));
    made.values = Tensor(dtype, Shape{count});
    fill(made.values);
    made.indices = Tensor(DType::int64, Shape{count});
    for (int64_t i = 0; i < count; ++i) made.indices.data<int64_t>()[i] = i;
    return made;
  }

  Datum datum(const Port& port, DType dtype, int depth = 0) {
    auto takes = [&](Type::Kind kind) { return port.types.accepts(Type{kind, DType::undefined, DType::undefined, std::nullopt, nullptr}); };
    const bool takes_tensors = std::popcount(0U) == 0 && port.types.accepts(Type::tensor(dtype));
    auto choose = [&](Type::Kind kind) { return depth < 2 && takes(kind) && (!takes_tensors || one_in(12)); };
    if (choose(Type::Kind::sequence)) {
      Sequence sequence{dtype, {}};
      for (uint64_t i = below(4); i > 0; --i) sequence.elements.emplace_back(tensor(dtype, {}));
      return sequence;
    }
    if (choose(Type::Kind::optional)) return Optional{one_in(3) ? nullptr : std::make_shared<Datum>(tensor(dtype, {}))};
    if (choose(Type::Kind::sparse_tensor)) return sparse(dtype);
    if (choose(Type::Kind::map)) {
      Map map;
      std::vector<int64_t> keys;
      for (uint64_t i = below(4); i > 0; --i) keys.push_back(integer());
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
      map.values = Tensor(dtype, Shape{static_cast<int64_t>(keys.size())});
      fill(map.values);
      map.keys = keys;
      return map;
    }
    return tensor(dtype, port.ranks);
  }

  void make_inputs() {
    const std::vector<Port>& ports = case_.op->inputs;
    std::map<std::string_view, DType> bound;
    for (const Port& port : ports) {
      const uint64_t count = port.presence == Presence::variadic ? 1 + below(4) : 1;
      for (uint64_t i = 0; i < count; ++i) {
        SweepOperand& operand = case_.inputs.emplace_back();
        const bool there = port.presence == Presence::optional ? !one_in(3) : !one_in(50);
        if (!there) continue;
        DType dtype = dtype_of_set(port.types);
        if (!port.type_name.empty() && port.presence != Presence::variadic && !one_in(60))
          dtype = bound.try_emplace(port.type_name, dtype).first->second;
        operand.value = datum(port, dtype);
        operand.knowledge = static_cast<Knowledge>(below(4));
      }
    }
    if (one_in(60)) case_.inputs.push_back({Tensor::scalar<float>(1)});
    while (!case_.inputs.empty() && !case_.inputs.back().value.defined()) case_.inputs.pop_back();
  }

  void make_outputs() {
    for (const Port& port : case_.op->outputs) {
      const uint64_t count = port.presence == Presence::variadic ? 1 + below(4) : 1;
      for (uint64_t i = 0; i < count; ++i) case_.outputs.push_back(port.presence == Presence::optional ? one_in(2) : !one_in(12));
    }
    if (one_in(80)) case_.outputs.push_back(true);
    while (!case_.outputs.empty() && !case_.outputs.back()) case_.outputs.pop_back();
  }

  int64_t allowed_integer(const Allowed& allowed) {
    if (one_in(20)) return integer();
    if (allowed.dtypes != TypeSet{}) return static_cast<int64_t>(dtype_of_set(allowed.dtypes));
    const int64_t number = integer();
    if (number >= allowed.least && number <= allowed.most) return number;
    const uint64_t room = static_cast<uint64_t>(allowed.most) - static_cast<uint64_t>(allowed.least);
    return allowed.least + static_cast<int64_t>(below(std::min<uint64_t>(room, 3) + 1));
  }

  std::string text(const AttributeDef& def) {
    std::vector<std::string> words;
    for (std::string_view rest = def.allowed.words; !rest.empty();) {
      words.emplace_back(rest.substr(0, rest.find('|')));
      rest = rest.find('|') == std::string_view::npos ? std::string_view() : rest.substr(rest.find('|') + 1);
    }
    if (!words.empty() && !one_in(20)) return words[below(words.size())];
    return std::string(kTexts[below(std::size(kTexts))]);
  }

  std::vector<int64_t> integers(const AttributeDef& def) {
    static constexpr size_t kCounts[] = {0, 1, 1, 2, 2, 3, 4, 4, 6};
    const size_t length = one_in(2) ? base_.size() >= 2 ? base_.size() - 2 : 1 : kCounts[below(std::size(kCounts))];
    std::vector<int64_t> numbers(def.name == "pads" && !one_in(10) ? 2 * length : length);
    for (int64_t& number : numbers) number = allowed_integer(def.allowed);
    return numbers;
  }

  Attribute of_any_type(const AttributeDef& def) {
    switch (below(9)) {
      case 0:
      case 1:
      case 2: return integers(def);
      case 3:
      case 4: return allowed_integer(def.allowed);
      case 5: return static_cast<float>(real());
      case 6: {
        std::vector<std::string> texts(below(4));
        for (std::string& each_text : texts) each_text = text(def);
        return texts;
      }
      case 7: {
        std::vector<float> numbers(below(6));
        for (float& number : numbers) number = static_cast<float>(real());
        return numbers;
      }
      default: return one_in(2) ? Attribute(Datum(tensor(dtype_of_set(kAllTensors), {}))) : Attribute(text(def));
    }
  }

  void make_attribute(const AttributeDef& def) {
    if (def.name == kAnyAttribute) return;
    const bool required = std::holds_alternative<AttributeDef::Required>(def.value);
    if (required ? one_in(40) : one_in(2)) return;
    static constexpr std::string_view kBodies[] = {"body",    "then_branch",  "else_branch", "decoder",
                                                   "encoder", "init_decoder", "score_mod",   "prob_mod"};
    if (std::ranges::find(kBodies, def.name) != std::end(kBodies) && !one_in(20)) return case_.bodies.emplace_back(def.name), void();
    if (std::holds_alternative<int64_t>(def.value) && !one_in(60)) return case_.attributes.set(def.name, allowed_integer(def.allowed));
    if (std::holds_alternative<float>(def.value) && !one_in(60)) return case_.attributes.set(def.name, static_cast<float>(real()));
    if (std::holds_alternative<std::string_view>(def.value) && !one_in(60)) return case_.attributes.set(def.name, text(def));
    case_.attributes.set(def.name, of_any_type(def));
  }

  std::mt19937_64 random_;
  std::vector<int64_t> base_;
  SweepCase case_;
};

}  // namespace

SweepCase make_case(uint64_t seed, const std::vector<const OpDef*>& ops) { return CaseMaker(seed, ops).make(); }

std::string to_string(const SweepCase& c) {
  static constexpr std::string_view kKnown[] = {"constant", "shape", "symbols", "nothing"};
  std::string text = fmt::format("{}.{} version {}{}\n", c.op->domain.empty() ? "ai.onnx" : c.op->domain, c.op->name, c.version,
                                 c.optimized ? ", optimised" : "");
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const SweepOperand& operand = c.inputs[i];
    if (!operand.value.defined()) {
      text += fmt::format("  input {} left out\n", i);
      continue;
    }
    text += fmt::format("  input {} {} known: {}", i, describe(operand.value), kKnown[static_cast<size_t>(operand.knowledge)]);
    if (operand.value.is_tensor() && operand.value.tensor().num_elements() <= 8) text += " " + treadle::to_string(Attribute(operand.value));
    text += "\n";
  }
  for (size_t i = 0; i < c.outputs.size(); ++i)
    if (!c.outputs[i]) text += fmt::format("  output {} left out\n", i);
  text += fmt::format("  {} outputs\n", c.outputs.size());
  for (const auto& [name, value] : c.attributes) text += fmt::format("  {} = {}\n", name, treadle::to_string(value));
  for (const std::string& body : c.bodies) text += fmt::format("  {} = a body\n", body);
  return text;
}

}  // namespace treadle::fuzz
