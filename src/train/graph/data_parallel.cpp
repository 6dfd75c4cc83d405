#include "train/graph/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "graph/infer.h"
#include "train/graph/optimizers.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// Positions of nodes in execution order, to insert new nodes as early as their operands allow.
class Places {
 public:
  explicit Places(const Graph& graph) : graph_(graph), order_(graph.order()) {
    for (size_t i = 0; i < order_.size(); ++i) place_.emplace(order_[i], i + 1);
  }
  /// Returns the position, counted from 1, of the node that computes the value; 0 for a value that no node computes.
  size_t of(ValueId value) const {
    const NodeId producer = value == kNoValue ? kNoNode : graph_.value(value).producer;
    return producer == kNoNode ? 0 : place_.at(producer);
  }
  NodeId behind(size_t place) const { return place < order_.size() ? order_[place] : kNoNode; }

 private:
  const Graph& graph_;
  std::vector<NodeId> order_;
  std::map<NodeId, size_t> place_;
};

ValueId node_with_output(Graph& graph, NodeSpec spec, NodeId before = kNoNode) {
  spec.name = graph.unique_name(spec.name);
  const NodeId id = graph.add_node(std::move(spec), before);
  infer_node(graph, id);
  return graph.node(id).outputs[0];
}

/// Returns the shapes of the values in one list, which contains for each value its rank and then its extents.
std::vector<int64_t> shapes_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<int64_t> shapes;
  for (ValueId value : values) {
    const Shape shape = graph.type(value).static_shape();
    shapes.push_back(shape.rank());
    shapes.insert(shapes.end(), shape.dims().begin(), shape.dims().end());
  }
  return shapes;
}

std::vector<int64_t> sizes_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<int64_t> sizes;
  for (ValueId value : values) sizes.push_back(graph.type(value).static_shape().num_elements());
  return sizes;
}

size_t bytes_of(const Tensor& tensor) { return tensor.size_bytes(); }

}  // namespace

DataParallel::DataParallel(std::shared_ptr<Communicator> communicator, const TrainerOptions& options)
    : communicator_(std::move(communicator)),
      bucket_bytes_(static_cast<size_t>(options.bucket_bytes)),
      bfloat16_(options.reduction == DType::bfloat16),
      sharded_(options.shard_optimizer),
      step_(communicator_),
      update_(communicator_),
      gradients_(communicator_) {}

void DataParallel::assign_owners(const std::vector<std::string>& names, const NamedTensors& parameters) {
  if (!sharded_) return;
  std::vector<std::string> largest_first = names;
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](const std::string& a, const std::string& b) { return bytes_of(parameters.at(a)) > bytes_of(parameters.at(b)); });
  std::vector<size_t> loads(static_cast<size_t>(size()));
  for (const std::string& name : largest_first) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes_of(parameters.at(name));
    owners_.emplace(name, static_cast<int>(least - loads.begin()));
  }
}

std::vector<std::vector<size_t>> DataParallel::groups_of(const Graph& graph, const std::vector<ValueId>& values) const {
  const Places places(graph);
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return places.of(values[a]) < places.of(values[b]); });
  std::vector<std::vector<size_t>> groups;
  size_t bytes = bucket_bytes_;
  for (size_t i : order) {
    if (bytes >= bucket_bytes_) groups.emplace_back(), bytes = 0;
    groups.back().push_back(i);
    bytes += static_cast<size_t>(graph.type(values[i]).static_shape().num_elements()) * sizeof(float);
  }
  return groups;
}

DataParallel::Reduced DataParallel::add(Graph& graph, Part& part, const Request& request) const {
  if (part.groups.empty()) part.groups = groups_of(graph, request.gradients);
  const Places places(graph);
  struct Bucket {
    std::vector<ValueId> values;
    std::vector<size_t> gradients;  // indices of gradients; empty for the bucket of `request.first`
    bool bfloat16 = false;
  };
  std::vector<Bucket> buckets;
  if (!request.first.empty()) buckets.push_back({request.first, {}, false});
  for (const std::vector<size_t>& group : part.groups) {
    buckets.push_back({{}, group, bfloat16_});
    for (size_t i : group) buckets.back().values.push_back(request.gradients[i]);
  }
  if (!request.awaited.empty()) buckets.push_back({});
  Reduced reduced{.first = {}, .gradients = std::vector<ValueId>(request.gradients.size())};
  auto attributes_of = [&](size_t index) {
    const Bucket& bucket = buckets[index];
    return Attributes{{"exchange", part.exchange.id()},
                      {"bucket", static_cast<int64_t>(index)},
                      {"sizes", sizes_of(graph, bucket.values)},
                      {"bfloat16", int64_t{bucket.bfloat16}}};
  };
  size_t place = places.of(request.weight);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const std::vector<int64_t> sizes = sizes_of(graph, buckets[b].values);
    part.exchange.set_bucket(b, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}),
                             buckets[b].bfloat16 ? DType::bfloat16 : DType::float32);
    for (ValueId value : buckets[b].values) place = std::max(place, places.of(value));
    std::vector<ValueId> inputs{reduced.begun, request.weight};
    inputs.insert(inputs.end(), buckets[b].values.begin(), buckets[b].values.end());
    if (buckets[b].values.empty()) {
      inputs.insert(inputs.end(), request.awaited.begin(), request.awaited.end());
      for (ValueId value : request.awaited) place = std::max(place, places.of(value));
    }
    reduced.begun = node_with_output(graph,
                                     {.op_type = "AllReduceBegin",
                                      .inputs = std::move(inputs),
                                      .attributes = attributes_of(b),
                                      .domain = "treadle",
                                      .name = fmt::format("all_reduce/begin_{}", b)},
                                     places.behind(place));
  }
  for (size_t b = 0; b < buckets.size() && !buckets[b].values.empty(); ++b) {
    Attributes attributes = attributes_of(b);
    attributes.set("shapes", shapes_of(graph, buckets[b].values));
    attributes.set("mean", int64_t{request.weight != kNoValue});
    const NodeId end = graph.add_node({.op_type = "AllReduceEnd",
                                       .inputs = {reduced.begun},
                                       .attributes = std::move(attributes),
                                       .domain = "treadle",
                                       .name = graph.unique_name(fmt::format("all_reduce/end_{}", b)),
                                       .num_outputs = static_cast<int>(buckets[b].values.size())});
    infer_node(graph, end);
    const std::vector<ValueId>& outputs = graph.node(end).outputs;
    if (buckets[b].gradients.empty()) reduced.first = outputs;
    for (size_t i = 0; i < buckets[b].gradients.size(); ++i) reduced.gradients[buckets[b].gradients[i]] = outputs[i];
  }
  return reduced;
}

void DataParallel::add_to_step(Graph& graph, StepValues& values) {
  Request request{.first = {values.loss}, .gradients = values.gradients, .weight = values.weight, .awaited = {}};
  for (const ValueId* state : values.states) request.first.push_back(*state);
  Reduced reduced = add(graph, step_, request);
  values.loss = reduced.first[0];
  for (size_t i = 0; i < values.states.size(); ++i) *values.states[i] = reduced.first[i + 1];
  values.gradients = std::move(reduced.gradients);
}

void DataParallel::add_to_accumulation(Graph& graph, StepValues& values) {
  Request request{.first = {values.loss}, .gradients = {}, .weight = values.weight, .awaited = values.gradients};
  for (const ValueId* state : values.states) request.first.push_back(*state);
  const Reduced reduced = add(graph, step_, request);
  values.loss = reduced.first[0];
  for (size_t i = 0; i < values.states.size(); ++i) *values.states[i] = reduced.first[i + 1];
  const ValueId share = node_with_output(graph, {.op_type = "AllReduceShare",
                                                 .inputs = {reduced.begun},
                                                 .attributes = {{"exchange", step_.exchange.id()}},
                                                 .domain = "treadle",
                                                 .name = "all_reduce/share"});
  for (ValueId& gradient : values.gradients)
    gradient = node_with_output(graph, {.op_type = "Mul", .inputs = {gradient, share}, .name = "all_reduce/shared"});
}

std::vector<ValueId> DataParallel::add_to_update(Graph& graph, const std::vector<ValueId>& shares) {
  return add(graph, update_, {.first = {}, .gradients = shares, .weight = kNoValue, .awaited = {}}).gradients;
}

void DataParallel::add_to_gradients(Graph& graph, StepValues& values) {
  values.gradients =
      add(graph, gradients_, {.first = {values.loss}, .gradients = values.gradients, .weight = values.weight, .awaited = {}}).gradients;
}

void DataParallel::begin(const std::string& description, const std::vector<const NamedTensors*>& tensors) {
  const std::string first = text_of_rank_0(*communicator_, [&] { return description; });
  std::vector<int32_t> differs(static_cast<size_t>(size()));
  differs[static_cast<size_t>(rank())] = first != description;
  communicator_->all_gather(differs.data(), std::vector<size_t>(differs.size(), sizeof(int32_t)));
  std::vector<int> others;
  for (int r = 0; r < size(); ++r)
    if (differs[static_cast<size_t>(r)]) others.push_back(r);
  if (!others.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} was made with another model or other options than rank 0", fmt::join(others, ", ")));
  for (const NamedTensors* named : tensors)
    for (const auto& [name, tensor] : *named) communicator_->broadcast(tensor.raw(), tensor.size_bytes(), 0);
}

void DataParallel::share(const NamedTensors& parameters) {
  for (const auto& [name, owner] : owners_) {
    const Tensor& tensor = parameters.at(name);
    communicator_->broadcast(tensor.raw(), tensor.size_bytes(), owner);
  }
}

NamedTensors DataParallel::joint_state(const NamedTensors& own, const NamedTensors& parameters, const std::vector<std::string>& state_names,
                                       const std::string& sum_name) const {
  NamedTensors joint = own;
  for (const auto& [name, owner] : owners_)
    for (const std::string& what : state_names) {
      const std::string state = state_name(name, what);
      auto found = joint.try_emplace(state, owner == rank() ? Tensor() : Tensor(DType::float32, parameters.at(name).shape())).first;
      communicator_->broadcast(found->second.raw(), found->second.size_bytes(), owner);
    }
  for (const auto& [name, parameter] : parameters) {
    auto found = joint.find(state_name(name, sum_name));
    if (found == joint.end()) continue;
    found->second = found->second.clone();
    communicator_->all_reduce(found->second.raw(), static_cast<size_t>(found->second.num_elements()), DType::float32);
  }
  return joint;
}

std::string text_of_rank_0(Communicator& communicator, const std::function<std::string()>& make) {
  struct Header {
    int64_t code = 0, length = 0;
  } header;
  std::string text;
  if (communicator.rank() == 0) {
    try {
      text = make();
    } catch (const Error& error) {
      text = error.what();
      header.code = static_cast<int64_t>(error.code());
    }
    header.length = static_cast<int64_t>(text.size());
  }
  communicator.broadcast(&header, sizeof(header), 0);
  text.resize(static_cast<size_t>(header.length));
  if (!text.empty()) communicator.broadcast(text.data(), text.size(), 0);
  if (header.code != 0) throw Error(static_cast<ErrorCode>(header.code), text);
  return text;
}

}  // namespace treadle::train
