#include "train/graph/joined_parameters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "core/values/allocation.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "train/graph/optimizers.h"

namespace treadle::train {

ValueId join_parameters(Graph& graph, const std::vector<std::string>& names, std::span<const ValueId> grads,
                        const std::string& joined_name) {
  std::vector<int64_t> sizes;
  for (const std::string& name : names) sizes.push_back(graph.type(graph.find_value(name)).static_shape().num_elements());
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const ValueId all = graph.add_input(joined_name, Type::tensor(DType::float32, SymbolicShape{Dim(total)}));
  const NodeId first = graph.first();
  auto add = [&](NodeSpec spec, NodeId before) {
    const NodeId id = graph.add_node(std::move(spec));
    infer_node(graph, id);
    if (before != kNoNode) graph.move_before(id, before);
    return id;
  };
  auto ints = [&](const std::string& name, const std::vector<int64_t>& values) {
    return graph.add_constant(graph.unique_name(name), Tensor::vector<int64_t>(values));
  };
  const NodeId split = add({.op_type = "Split",
                            .inputs = {all, ints("sizes", sizes)},
                            .attributes = {{"axis", int64_t{0}}},
                            .name = "parameters/split",
                            .num_outputs = static_cast<int>(names.size())},
                           first);
  const ValueId flat = ints("flat", {-1});
  std::vector<ValueId> flattened;
  for (size_t i = 0; i < names.size(); ++i) {
    const ValueId parameter = graph.find_value(names[i]);
    const Shape shape = graph.type(parameter).static_shape();
    const NodeId shaped = add({.op_type = "Reshape",
                               .inputs = {graph.node(split).outputs[i], ints("shape", {shape.dims().begin(), shape.dims().end()})},
                               .name = names[i] + "/shaped"},
                              first);
    graph.replace_uses(parameter, graph.node(shaped).outputs[0]);
    std::erase(graph.inputs, parameter);
    const NodeId line = add({.op_type = "Reshape", .inputs = {grads[i], flat}, .name = names[i] + "/gradient"}, kNoNode);
    flattened.push_back(graph.node(line).outputs[0]);
  }
  const NodeId joined =
      add({.op_type = "Concat", .inputs = flattened, .attributes = {{"axis", int64_t{0}}}, .name = "gradients/joined"}, kNoNode);
  return graph.node(joined).outputs[0];
}

Tensor zeros(const Shape& shape) {
  Tensor made(DType::float32, shape);
  std::fill_n(made.data<float>(), made.num_elements(), 0.0F);
  return made;
}

NamedTensors lay_side_by_side(NamedTensors& parameters, NamedTensors& optimizer_state, const std::vector<std::string>& names,
                              const std::vector<std::string>& state_names, const std::string& joined_name) {
  int64_t total = 0;
  for (const std::string& name : names) total += parameters.at(name).num_elements();
  const AllocationContext* memory = AllocationScope::current();
  const Tensor all = [&] {
    const AllocationScope scope(memory, MemoryClass::parameters);
    return Tensor(DType::float32, Shape{total});
  }();
  const AllocationScope scope(memory, MemoryClass::optimizer_state);
  NamedTensors made{{joined_name, all}};
  for (const std::string& what : state_names) made.emplace(state_name(joined_name, what), zeros(Shape{total}));
  size_t offset = 0;
  for (const std::string& name : names) {
    Tensor& parameter = parameters.at(name);
    const Tensor view(DType::float32, parameter.shape(), all.storage(), offset);
    if (parameter.num_elements() > 0) std::memcpy(view.raw(), parameter.raw(), parameter.size_bytes());
    parameter = view;
    for (const std::string& what : state_names) {
      Tensor& kept = optimizer_state.at(state_name(name, what));
      Tensor piece(DType::float32, view.shape(), made.at(state_name(joined_name, what)).storage(), offset);
      piece.copy_from(kept);
      kept = piece;
    }
    offset += view.size_bytes();
  }
  return made;
}

}  // namespace treadle::train
