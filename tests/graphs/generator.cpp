#include "tests/graphs/generator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

namespace treadle::graphs {
namespace {

// Limits on the elements of a value. Most graphs are small, as the interpreter is slow; some are large enough for parallel loops and whole
// tiles.
constexpr size_t kFewElements = 600, kManyElements = 20'000;

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> kinds = [] {
    std::vector<Kind> result;
    for (const auto* list : {&movement_kinds(), &shape_kinds(), &compute_kinds(), &neural_kinds(), &control_kinds(), &recurrent_kinds(),
                             &text_kinds(), &indexed_kinds()})
      result.insert(result.end(), list->begin(), list->end());
    return result;
  }();
  return kinds;
}

}  // namespace

Generator::Generator(uint32_t seed) : random_(std::make_shared<std::mt19937>(seed)), next_name_(std::make_shared<int>(0)) {
  is_large_ = one_in(150);
  scopes_.resize(one_in(2) ? 1 : static_cast<size_t>(between(2, 3)));
  feeds_.resize(scopes_.size());
  // Each graph prefers some kinds of nodes and lacks others, so that rare combinations occur (swarm testing, Groce et al. 2012).
  for (const Kind& kind : all_kinds()) weights_.push_back(kind.weight * one_of<int>({0, 1, 1, 2, 8}));
}

Generator::Generator(Generator& outer)
    : random_(outer.random_),
      next_name_(outer.next_name_),
      depth_(outer.depth_ + 1),
      is_large_(outer.is_large_),
      names_(outer.names_),
      first_own_(names_.size()),
      weights_(outer.weights_) {
  for (const Scope& scope : outer.scopes_) scopes_.emplace_back(&scope);
  graph_.name = "body";
}

Array Generator::random_array(DType dtype, Dims dims) {
  Array result(dtype, std::move(dims));
  for (size_t k = 0; k < result.size(); ++k) {
    if (result.texts())
      result.s[k] = one_of<std::string>({"", "a", "bc", "def", "a longer text that has memory of its own", "0", "z"});
    else if (result.floats())
      result.set(k, one_in(8) ? 0.0 : static_cast<double>(between(-300, 300)) / 101.0);
    else
      result.set(k, dtype == DType::boolean ? below(2) : is_signed_integer(dtype) ? between(-5, 6) : between(0, 9));
  }
  return result;
}

void Generator::add_inputs() {
  const bool symbolic = num_sets() > 1;
  std::vector<std::vector<int64_t>> symbols(2);  // for each set of feeds, the values of the symbols N and M
  for (auto& extents : symbols)
    for (size_t set = 0; set < num_sets(); ++set)
      extents.push_back(is_large_ ? one_of<int64_t>({1, 16, 33, 64}) : one_of<int64_t>({1, 2, 3, 4, 5, 7, one_in(6) ? 0 : 2}));
  const int64_t count = between(1, 5), rank_bias = below(5), channels = one_of<int64_t>({1, 2, 3, 4, 6, 8, 16});
  for (int64_t i = 0; i < count; ++i) {
    const DType dtype = one_of<DType>({DType::float32, DType::float32, DType::float32, DType::float32, DType::float32, DType::float32,
                                       DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::int8,
                                       DType::uint8, DType::boolean, one_in(3) ? DType::string : DType::float32});
    const int64_t rank = one_in(3) ? below(6) : std::clamp<int64_t>(rank_bias + below(2), 1, 5);
    onnx::ValueInfoDef info = declare("x" + std::to_string((*next_name_)++), dtype);
    info.type.shape.emplace();
    std::vector<Dims> dims(num_sets());
    for (int64_t d = 0; d < rank; ++d) {
      onnx::DimDef dim;
      const bool is_symbol = symbolic && one_in(3);
      const auto which = static_cast<size_t>(below(2));
      const int64_t extent = rank == 4 && d == 1 ? channels
                             : is_large_         ? one_of<int64_t>({1, 2, 4, 8, 16, 17, 32, 33, 64, 100})
                                                 : one_of<int64_t>({1, 2, 2, 3, 4, 4, 5, 6, 8, one_in(25) ? 0 : 1});
      dim.kind = is_symbol ? onnx::DimDef::Kind::param : onnx::DimDef::Kind::value;
      if (is_symbol)
        dim.param = which == 0 ? "N" : "M";
      else
        dim.value = extent;
      info.type.shape->push_back(dim);
      for (size_t set = 0; set < num_sets(); ++set) dims[set].push_back(is_symbol ? symbols[which][set] : extent);
    }
    auto too_many = [&](const Dims& shape) {
      return std::accumulate(shape.begin(), shape.end(), 1.0, std::multiplies<>()) > static_cast<double>(most_elements());
    };
    if (std::any_of(dims.begin(), dims.end(), too_many)) continue;
    for (size_t set = 0; set < num_sets(); ++set) {
      feeds_[set][info.name] = random_array(dtype, dims[set]);
      scopes_[set].set(info.name, feeds_[set][info.name]);
    }
    names_.push_back(info.name);
    graph_.inputs.push_back(std::move(info));
  }
}

std::string Generator::pick(const Condition& condition) {
  std::vector<std::string> fit;
  for (const std::string& name : names_)
    if (value(name).is_tensor() && array(name).texts() == wants_texts_ && condition(array(name))) fit.push_back(name);
  if (fit.empty()) return {};
  const auto count = static_cast<int64_t>(fit.size());
  if (one_in(3)) return fit[static_cast<size_t>(below(count))];
  return fit[static_cast<size_t>(count - 1 - below(std::min<int64_t>(count, 4)))];
}

std::string Generator::pick_own(const Condition& condition) {
  std::vector<std::string> fit;
  for (size_t i = first_own_; i < names_.size(); ++i)
    if (value(names_[i]).is_tensor() && array(names_[i]).texts() == wants_texts_ && condition(array(names_[i]))) fit.push_back(names_[i]);
  return fit.empty() ? std::string() : fit[static_cast<size_t>(below(static_cast<int64_t>(fit.size())))];
}

std::string Generator::pick_sequence() {
  std::vector<std::string> fit;
  for (const std::string& name : names_)
    if (value(name).is_sequence && !value(name).is_optional) fit.push_back(name);
  return fit.empty() ? std::string() : fit[static_cast<size_t>(below(static_cast<int64_t>(fit.size())))];
}

std::string Generator::pick_optional() {
  std::vector<std::string> fit;
  for (const std::string& name : names_)
    if (value(name).is_optional) fit.push_back(name);
  return fit.empty() ? std::string() : one_of(fit);
}

std::string Generator::constant(Array content) {
  const std::string name = "c" + std::to_string((*next_name_)++);
  Value stored = content;
  stored.is_stored = true;
  for (Scope& scope : scopes_) scope.set(name, stored);
  graph_.initializers.push_back(initializer(name, content));
  // Lets other nodes read the constant, unless its numbers are so large that arithmetic on them would overflow.
  const bool small = std::all_of(content.i.begin(), content.i.end(), [](int64_t x) { return x > -1'000'000 && x < 1'000'000; });
  if (small && one_in(6)) names_.push_back(name);
  return name;
}

size_t Generator::most_elements() const { return is_large_ ? kManyElements : kFewElements; }

bool Generator::tame(const Value& value) const {
  auto good = [&](const Array& a) {
    if (a.size() > most_elements() || a.rank() > 6) return false;
    const double most = a.dtype == DType::float16 ? 2e3 : 1e4;
    for (double x : a.f)
      if (!(std::fabs(x) <= most)) return false;
    for (int64_t x : a.i)
      if (std::abs(x) > 1'000'000'000) return false;
    return true;
  };
  return value.elements.size() <= 12 && good(value.array) && std::all_of(value.elements.begin(), value.elements.end(), good);
}

std::vector<std::string> Generator::add(const std::string& op, std::vector<std::string> inputs, std::vector<onnx::AttributeDef> attributes,
                                        size_t num_outputs) {
  onnx::NodeDef node;
  node.op_type = op;
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
  for (size_t i = 0; i < num_outputs; ++i) node.outputs.push_back("v" + std::to_string((*next_name_)++));
  node.name = node.outputs[0] + "_node";
  try {
    for (Scope& scope : scopes_) {
      Noise none;
      interpret(node, scope, none);
      for (const std::string& output : node.outputs)
        if (!tame(scope.get(output))) return {};
    }
    // The rank of a value must be the same for all sets of feeds, because exporters do not write other graphs.
    for (size_t set = 1; set < scopes_.size(); ++set)
      for (const std::string& output : node.outputs)
        if (value(output, set).array.dims.size() != value(output).array.dims.size()) return {};
  } catch (const Invalid&) {
    return {};
  } catch (const std::out_of_range&) {
    return {};
  }
  names_.insert(names_.end(), node.outputs.begin(), node.outputs.end());
  std::vector<std::string> outputs = node.outputs;
  graph_.nodes.push_back(std::move(node));
  return outputs;
}

std::string Generator::add_one(const std::string& op, std::vector<std::string> inputs, std::vector<onnx::AttributeDef> attributes) {
  const std::vector<std::string> outputs = add(op, std::move(inputs), std::move(attributes));
  return outputs.empty() ? std::string() : outputs[0];
}

std::string Generator::add_formal(const std::vector<Value>& example_per_set) {
  const std::string name = "b" + std::to_string((*next_name_)++);
  for (size_t set = 0; set < num_sets(); ++set) scopes_[set].set(name, example_per_set[set]);
  names_.push_back(name);
  graph_.inputs.push_back(declare(name, example_per_set[0].array.dtype, example_per_set[0].is_sequence));
  return name;
}

void Generator::add_output(const std::string& name, bool in_body) {
  const Value& v = value(name);
  onnx::ValueInfoDef info = declare(name, v.array.dtype, v.is_sequence);
  if (!v.is_sequence && !in_body && one_in(2)) {
    info.type.shape.emplace();
    for (int64_t extent : v.array.dims) {
      onnx::DimDef dim;
      if (num_sets() == 1) {
        dim.kind = onnx::DimDef::Kind::value;
        dim.value = extent;
      }
      info.type.shape->push_back(dim);
    }
  }
  graph_.outputs.push_back(std::move(info));
}

void Generator::grow(int num_nodes) {
  const std::vector<Kind>& kinds = all_kinds();
  std::discrete_distribution<size_t> choose(weights_.begin(), weights_.end());
  for (int tries = 0; tries < 20 * num_nodes && static_cast<int>(graph_.nodes.size()) < num_nodes; ++tries) {
    try {
      kinds[choose(*random_)].make(*this);
    } catch (const Invalid&) {  // the node needed a value that the graph does not have
    }
  }
}

void Generator::choose_outputs() {
  std::set<std::string> read;
  for (const auto& node : graph_.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  std::vector<std::string> outputs;
  for (const auto& node : graph_.nodes)
    for (const std::string& name : node.outputs)
      if (!value(name).is_optional && (read.contains(name) ? one_in(8) : !one_in(5))) outputs.push_back(name);
  if (outputs.empty()) {
    if (value(graph_.nodes.back().outputs[0]).is_optional) add("OptionalHasElement", {graph_.nodes.back().outputs[0]});
    outputs.push_back(graph_.nodes.back().outputs[0]);
  }
  if (!graph_.inputs.empty() && one_in(8)) outputs.push_back(one_of(graph_.inputs).name);
  if (!graph_.initializers.empty() && one_in(8)) outputs.push_back(one_of(graph_.initializers).name);
  std::shuffle(outputs.begin(), outputs.end(), *random_);
  if (outputs.size() > 8) outputs.resize(8);
  for (const std::string& name : outputs) add_output(name, false);
}

Case Generator::generate() {
  graph_.name = "graph";
  while (graph_.inputs.empty()) add_inputs();
  const int size = static_cast<int>(is_large_ ? between(2, 12) : one_in(5) ? between(21, 60) : one_in(2) ? between(7, 20) : between(2, 6));
  grow(size);
  if (graph_.nodes.empty()) add("Identity", {graph_.inputs[0].name});
  choose_outputs();
  Case result = empty_case();
  result.model.graph = std::move(graph_);
  result.sets = std::move(feeds_);
  return result;
}

}  // namespace treadle::graphs
