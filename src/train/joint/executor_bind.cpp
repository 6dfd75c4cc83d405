// Binds tensors to executors: the caller's tensors, new tensors of given shapes, or another executor's tensors. Also reshapes executors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/base/nearest.h"
#include "passes/infer_storage.h"
#include "train/joint/executor_impl.h"
#include "train/joint/sparse_values.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

[[noreturn]] void refuse_bind(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

std::vector<std::string> argument_names(const ExecutorGraphs& graphs) {
  std::vector<std::string> names;
  for (const ValueInfo& info : graphs.inputs()) names.push_back(info.name);
  for (const auto& [name, tensor] : graphs.parameters()) names.push_back(name);
  return names;
}

template <typename Values>
void check_names(const Values& values, const std::vector<std::string>& names, std::string_view what) {
  for (const auto& [name, value] : values)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error(ErrorCode::not_found,
                  fmt::format("{} for \"{}\", which the model does not have; is it {}?", what, name, nearest_names(name, names)));
}

// Throws if a shape or dtype is given for a name that is not an input.
template <typename Values>
void check_input_names(const Values& values, const ExecutorGraphs& graphs, std::string_view what) {
  std::vector<std::string> names;
  for (const ValueInfo& info : graphs.inputs()) names.push_back(info.name);
  for (const auto& [name, value] : values)
    if (graphs.parameters().contains(name)) refuse_bind(fmt::format("{} for \"{}\", which is a parameter and has the model's", what, name));
  check_names(values, names, what);
}

Tensor zeros(DType dtype, const Shape& shape) {
  Tensor made(dtype, shape);
  if (dtype != DType::string) std::memset(made.raw(), 0, made.size_bytes());
  return made;
}

// Returns a view of the first elements of the tensor, in a smaller shape.
Tensor front_of(const Tensor& tensor, const Shape& shape) {
  return Tensor(tensor.dtype(), shape, tensor.storage(), static_cast<size_t>(tensor.raw() - tensor.storage()->data()));
}

// Returns the given shapes, and those of other inputs that follow from them by shared symbols. Omits inputs whose shape stays unknown.
std::map<std::string, Shape> determined_shapes(const std::vector<ValueInfo>& inputs, const std::map<std::string, Shape>& given) {
  std::map<std::string, int64_t> extents;
  for (const ValueInfo& info : inputs) {
    const auto found = given.find(info.name);
    if (found == given.end()) continue;
    for (size_t axis = 0; axis < info.shape.size() && axis < static_cast<size_t>(found->second.rank()); ++axis)
      if (const auto* symbol = std::get_if<std::string>(&info.shape[axis]); symbol && !symbol->empty())
        extents.insert_or_assign(*symbol, found->second[static_cast<int>(axis)]);
  }
  std::map<std::string, Shape> shapes;
  for (const ValueInfo& info : inputs) {
    if (const auto found = given.find(info.name); found != given.end()) {
      shapes.insert(*found);
      continue;
    }
    Shape shape;
    bool is_known = info.has_rank;
    for (const auto& extent : info.shape) {
      const auto* symbol = std::get_if<std::string>(&extent);
      const auto known = symbol ? extents.find(*symbol) : extents.end();
      is_known &= !symbol || known != extents.end();
      if (is_known) shape.push_back(symbol ? known->second : std::get<int64_t>(extent));
    }
    if (is_known) shapes.emplace(info.name, shape);
  }
  return shapes;
}

std::string shape_text(const ValueInfo& info) {
  std::vector<std::string> extents;
  for (const auto& extent : info.shape)
    extents.push_back(std::holds_alternative<int64_t>(extent) ? fmt::format("{}", std::get<int64_t>(extent))
                                                              : std::get<std::string>(extent));
  return info.has_rank ? fmt::format("[{}]", fmt::join(extents, ",")) : "unknown";
}

std::map<std::string, std::string> storages_of(const ExecutorGraphs& graphs) {
  const auto& session = graphs.session_options();
  if (!session) return {};
  const auto given = session->config.find("treadle.storage");
  return given == session->config.end() ? std::map<std::string, std::string>() : passes::parse_storage(given->second);
}

std::string_view storage_name(const Datum& value) {
  const SparseTensor& sparse = value.sparse_tensor();
  if (sparse.format == SparseTensor::Format::csr) return "csr";
  return sparse.dense_shape.rank() > 1 && sparse.values.shape().rank() == sparse.dense_shape.rank() ? "row_sparse" : "coo";
}

// Returns zeros in the memory of `buffer`'s tensor of that name. If that tensor is missing or too small, replaces it by a new one.
Tensor from_buffer(NamedTensors* buffer, const std::string& name, DType dtype, const Shape& shape) {
  if (!buffer) return zeros(dtype, shape);
  const auto found = buffer->find(name);
  if (found == buffer->end() || found->second.dtype() != dtype || found->second.num_elements() < shape.num_elements() ||
      !found->second.is_contiguous())
    return buffer->insert_or_assign(name, zeros(dtype, shape)).first->second;
  const Tensor front = front_of(found->second, shape);
  std::memset(front.raw(), 0, front.size_bytes());
  return front;
}

GradientRequest request_of(const BindOptions& options, const ExecutorGraphs& graphs, const std::string& name, DType declared) {
  if (const auto found = options.requests.find(name); found != options.requests.end()) return found->second;
  return graphs.parameters().contains(name) || declared == DType::float32 ? options.request : GradientRequest::null;
}

}  // namespace

void Executor::Impl::request_gradients(const BindOptions& options) {
  std::map<std::string, DType> declared;
  for (const ValueInfo& info : graphs.inputs())
    declared.emplace(info.name, info.type.starts_with("tensor(") ? info.dtype : DType::undefined);
  for (const std::string& name : argument_names(graphs)) {
    const GradientRequest request = request_of(options, graphs, name, declared[name]);
    requests.emplace(name, request);
    if (request == GradientRequest::null) {
      if (options.gradients.contains(name)) refuse_bind(fmt::format("memory for the gradient of \"{}\", whose request is null", name));
      continue;
    }
    const Datum& value = arguments.at(name);
    if ((!value.is_tensor() && value.kind() != Datum::Kind::sparse_tensor) || element_type(value) != DType::float32)
      refuse_bind(fmt::format("\"{}\" is {}; gradients exist for float32 only", name, describe(value)));
    if (const auto given = options.gradients.find(name); given != options.gradients.end())
      gradients.insert(*given);
    else if (graphs.has_row_gradient(name))
      gradients.emplace(name, empty_sparse("row_sparse", DType::float32, dense_shape(value)));
    else
      gradients.emplace(name, zeros(DType::float32, dense_shape(value)));
    check_gradient(name, gradients.at(name));
  }
}

// Finds the parameters and states that the new executor shares with the existing executor options.shared.
void Executor::Impl::take_shared(const BindOptions& options, Feeds& shared_arguments, NamedTensors& shared_states) const {
  if (!options.shared) {
    if (options.shared_names) refuse_bind("shared_names needs the executor that has them");
    return;
  }
  const Impl& theirs = *options.shared->impl_;
  std::vector<std::string> own, both;
  for (const NamedTensors* tensors : {&graphs.parameters(), &graphs.states()})
    for (const auto& [name, tensor] : *tensors) {
      own.push_back(name);
      if (theirs.graphs.parameters().contains(name) || theirs.states.contains(name)) both.push_back(name);
    }
  if (!options.shared_names && both.empty() && !own.empty()) refuse_bind("the shared executor has no parameter of this model");
  for (const std::string& name : options.shared_names.value_or(both)) {
    if (std::find(both.begin(), both.end(), name) == both.end())
      throw Error(ErrorCode::not_found, fmt::format("\"{}\" is no parameter of both executors; those are {}", name, fmt::join(both, ", ")));
    const bool is_state = theirs.states.contains(name);
    const Datum value = is_state ? Datum(theirs.states.at(name)) : theirs.arguments.at(name);
    const auto parameter = graphs.parameters().find(name);
    const Shape& expected = parameter != graphs.parameters().end() ? parameter->second.shape() : graphs.states().at(name).shape();
    if (dense_shape(value) != expected)
      refuse_bind(fmt::format("\"{}\" is {} in the shared executor and {} in the model; name what is to be shared", name,
                              to_string(dense_shape(value)), to_string(expected)));
    if (parameter != graphs.parameters().end())
      shared_arguments.emplace(name, value);
    else
      shared_states.emplace(name, value.tensor());
  }
}

Executor::Executor(ExecutorGraphs graphs, const Feeds& given, const BindOptions& options)
    : impl_(std::make_unique<Impl>(std::move(graphs))) {
  Impl& e = *impl_;
  const std::vector<std::string> names = argument_names(e.graphs);
  check_names(given, names, "an argument is given"), check_names(options.requests, names, "a gradient is requested");
  check_names(options.gradients, names, "memory of a gradient is given");
  Feeds shared_arguments;
  NamedTensors shared_states;
  e.take_shared(options, shared_arguments, shared_states);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (const auto found = given.find(name); found != given.end())
      e.arguments.insert(*found);
    else if (const auto shared = shared_arguments.find(name); shared != shared_arguments.end())
      e.arguments.insert(*shared);
    else if (const auto parameter = e.graphs.parameters().find(name); parameter != e.graphs.parameters().end())
      e.arguments.emplace(name, parameter->second.clone());
    else
      missing.push_back(name);
  }
  if (!missing.empty()) refuse_bind(fmt::format("nothing is given for {}", fmt::join(missing, ", ")));
  for (const auto& [name, value] : e.arguments) e.check_argument(name, value);
  std::vector<std::string> state_names;
  for (const auto& [name, initial] : e.graphs.states()) {
    state_names.push_back(name);
    const auto found = options.states.find(name);
    const auto shared = shared_states.find(name);
    e.states.emplace(name, found != options.states.end()   ? found->second
                           : shared != shared_states.end() ? shared->second
                                                           : initial.clone());
    e.check_state(name, e.states.at(name));
  }
  check_names(options.states, state_names, "a state is given");
  e.request_gradients(options);
}

Executor Executor::simple_bind(ExecutorGraphs graphs, const std::map<std::string, Shape>& given, const SimpleBindOptions& options) {
  const std::vector<ValueInfo> inputs = graphs.inputs();
  check_input_names(given, graphs, "a shape is given"), check_input_names(options.dtypes, graphs, "a dtype is given");
  const std::map<std::string, Shape> shapes = determined_shapes(inputs, given);
  const std::map<std::string, std::string> storages = storages_of(graphs);
  Feeds arguments;
  BindOptions made = options;
  for (const ValueInfo& info : inputs) {
    const auto found = shapes.find(info.name);
    if (found == shapes.end() || (info.has_rank && static_cast<size_t>(found->second.rank()) != info.shape.size()))
      refuse_bind(fmt::format("the shape of \"{}\" is {}; give one without symbols", info.name, shape_text(info)));
    const auto given_type = options.dtypes.find(info.name);
    const DType declared = info.dtype == DType::undefined ? DType::float32 : info.dtype;
    const DType dtype = given_type == options.dtypes.end() ? declared : given_type->second;
    if (const auto storage = storages.find(info.name); storage != storages.end() && storage->second != "default")
      arguments.emplace(info.name, empty_sparse(storage->second, dtype, found->second));
    else
      arguments.emplace(info.name, from_buffer(options.shared_buffer, info.name, dtype, found->second));
    if (options.shared_buffer && !made.gradients.contains(info.name) &&
        request_of(options, graphs, info.name, info.dtype) != GradientRequest::null)
      made.gradients.emplace(info.name, from_buffer(options.shared_buffer, "grad of " + info.name, DType::float32, found->second));
  }
  return Executor(std::move(graphs), arguments, made);
}

Executor Executor::reshape(const std::map<std::string, Shape>& given, const ReshapeOptions& options) const {
  const Impl& old = *impl_;
  const std::vector<ValueInfo> inputs = old.graphs.inputs();
  check_input_names(given, old.graphs, "a shape is given");
  const std::map<std::string, Shape> shapes = determined_shapes(inputs, given);
  auto made = std::make_unique<Impl>(old.graphs);
  made->arguments = old.arguments, made->gradients = old.gradients;
  made->states = old.states, made->requests = old.requests;
  for (const ValueInfo& info : inputs) {
    const std::string& name = info.name;
    const Shape before = dense_shape(old.arguments.at(name));
    const auto found = shapes.find(name);
    if (!given.contains(name) && !options.partial_shaping) {
      if (found == shapes.end()) refuse_bind(fmt::format("the shape of \"{}\" is not given, and partial_shaping is off", name));
      if (found->second != before)
        refuse_bind(fmt::format("\"{}\" would change from {} to {}, and partial_shaping is off", name, to_string(before),
                                to_string(found->second)));
    }
    if (found == shapes.end() || found->second == before) continue;
    for (Feeds* values : {&made->arguments, &made->gradients}) {
      const auto value = values->find(name);
      if (value == values->end()) continue;
      if (!value->second.is_tensor()) {  // a sparse tensor is replaced, as it has no dense memory to reuse
        value->second = empty_sparse(storage_name(value->second), element_type(value->second), found->second);
        continue;
      }
      const Tensor tensor = value->second.tensor();
      if (found->second.num_elements() <= tensor.num_elements() && tensor.is_contiguous())
        value->second = front_of(tensor, found->second);
      else if (options.allow_up_sizing)
        value->second = zeros(tensor.dtype(), found->second);
      else
        refuse_bind(
            fmt::format("\"{}\" grows from {} to {}, and allow_up_sizing is off", name, to_string(before), to_string(found->second)));
    }
  }
  return Executor(std::move(made));
}

}  // namespace treadle::train
