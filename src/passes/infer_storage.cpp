#include "passes/infer_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/base/nearest.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

constexpr std::pair<std::string_view, StorageType> kNames[] = {{"default", StorageType::dense},
                                                               {"dense", StorageType::dense},
                                                               {"coo", StorageType::coo},
                                                               {"csr", StorageType::csr},
                                                               {"row_sparse", StorageType::row_sparse}};

class Storages {
 public:
  Storages(Rewriter& rewriter, const std::function<void(const std::string&)>& fallback)
      : rewriter_(rewriter), graph_(rewriter.graph()), fallback_(fallback) {}

  void make_sparse(ValueId input, StorageType storage) {
    Type& type = graph_.value(input).type;
    if (!type.is_tensor() || type.dtype == DType::string || is_sub_byte(type.dtype) || !type.has_rank() ||
        (storage == StorageType::csr && type.rank() != 2) || (storage == StorageType::row_sparse && type.rank() < 1))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the input \"{}\" is {}; {} takes a tensor {}", graph_.value(input).name, to_string(type), name_of(storage),
                              storage == StorageType::csr ? "of rank 2" : "of a known rank from 1 on"));
    type.kind = Type::Kind::sparse_tensor;
    storages_[input] = storage;
  }

  void visit(NodeId id) {
    Node& node = graph_.node(id);
    const auto sparse = std::find_if(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return is(input); });
    if (sparse == node.inputs.end()) return;
    rewriter_.change(id, [&] {
      if (!product(id) && !rows(id) && !pointwise(id)) read_dense(id);
      return true;
    });
  }

  std::map<ValueId, StorageType> take() { return std::move(storages_); }

 private:
  void read_dense(NodeId id) {
    for (size_t i = 0; i < graph_.node(id).inputs.size(); ++i)
      if (const ValueId input = graph_.node(id).inputs[i]; is(input)) graph_.set_input(id, i, dense(input, id));
  }

  bool is(ValueId value) const { return value != kNoValue && storages_.contains(value); }
  StorageType of(ValueId value) const {
    auto found = storages_.find(value);
    return found == storages_.end() ? StorageType::dense : found->second;
  }
  bool is_matrix(ValueId value) const {
    return value != kNoValue && !is(value) && graph_.type(value).has_rank() && graph_.type(value).rank() == 2;
  }

  ValueId add(NodeId before, std::string op, std::vector<ValueId> inputs, Attributes attributes = {}, std::string domain = "treadle") {
    const std::string name = graph_.node(before).name;
    return rewriter_.add({.op_type = std::move(op),
                          .inputs = std::move(inputs),
                          .attributes = std::move(attributes),
                          .domain = std::move(domain),
                          .name = name},
                         before);
  }

  // Makes one dense copy of a value, shared by all nodes that need it dense.
  ValueId dense(ValueId value, NodeId reader) {
    ValueId& made = dense_.try_emplace(value, kNoValue).first->second;
    if (fallback_)
      fallback_(
          fmt::format("\"{}\" ({}) is made dense for {}", graph_.value(value).name, name_of(of(value)), describe(graph_.node(reader))));
    if (made == kNoValue) made = add(reader, "SparseToDense", {value});
    return made;
  }

  void replace(NodeId id, ValueId by) {
    const ValueId old = graph_.node(id).outputs[0];
    rewriter_.replace(old, by);
    graph_.remove_node(id);
  }

  bool product(NodeId id) {
    const Node& node = graph_.node(id);
    const bool gemm = node.is("Gemm");
    if (!node.is("MatMul") && !gemm) return false;
    const ValueId a = node.inputs[0], c = node.has_input(2) ? node.inputs[2] : kNoValue;
    ValueId b = node.inputs[1];
    const DType dtype = graph_.type(a).dtype;
    if (of(a) != StorageType::csr || !is_matrix(b) || is(c) || (dtype != DType::float32 && dtype != DType::float64)) return false;
    if (gemm && (node.attributes.get_int("transA", 0) != 0 || node.attributes.get_float("alpha", 1) != 1 ||
                 (c != kNoValue && node.attributes.get_float("beta", 1) != 1)))
      return false;
    if (gemm && node.attributes.get_int("transB", 0) != 0) b = add(id, "Transpose", {b}, {{"perm", std::vector<int64_t>{1, 0}}}, "");
    ValueId y = add(id, "SparseMatMul", {a, b});
    if (c != kNoValue) y = add(id, "Add", {y, c}, {}, "");
    replace(id, y);
    return true;
  }

  bool rows(NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.is("Gather") || of(node.inputs[0]) != StorageType::row_sparse || is(node.inputs[1])) return false;
    const int64_t axis = node.attributes.get_int("axis", 0);
    if (axis != 0 && axis != -graph_.type(node.inputs[0]).rank()) return false;
    replace(id, add(id, "SparseGather", {node.inputs[0], node.inputs[1]}));
    return true;
  }

  bool pointwise(NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.op || !node.op->keeps_zeros || node.outputs.size() != 1 || !is(node.inputs[0])) return false;
    // Accepts one finite nonzero number c as the other operand: x * c and x / c keep zeros.
    const bool scales = node.num_formal_inputs == 2;
    const Tensor* factor = scales && !is(node.inputs[1]) ? graph_.constant_tensor(node.inputs[1]) : nullptr;
    if (node.num_formal_inputs > 2 || (scales && !(factor && factor->num_elements() == 1 && factor->dtype() == DType::float32 &&
                                                   std::isfinite(factor->data<float>()[0]) && factor->data<float>()[0] != 0 &&
                                                   factor->shape().rank() <= graph_.type(node.inputs[0]).rank())))
      return false;
    const ValueId x = node.inputs[0];
    const StorageType storage = of(x);
    const ValueId values = add(id, "SparseValues", {x}, {{"storage", std::string(name_of(storage))}});
    std::vector<ValueId> inputs{values};
    if (scales) inputs.push_back(graph_.add_constant(graph_.value(node.inputs[1]).name, factor->reshaped(Shape{})));
    const Attributes attributes = node.attributes;
    const std::string op = node.op_type, domain = node.domain;
    const ValueId computed = add(id, op, std::move(inputs), attributes, domain);
    const ValueId y = add(id, "SparseWithValues", {x, computed});
    replace(id, y);
    storages_[y] = storage;
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const std::function<void(const std::string&)>& fallback_;
  std::map<ValueId, StorageType> storages_;
  std::map<ValueId, ValueId> dense_;
};

}  // namespace

StorageType storage_type(const std::string& name) {
  for (const auto& [known, storage] : kNames)
    if (known == name) return storage;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no storage type \"{}\"; there are default (dense), coo, csr and row_sparse", name));
}

std::map<std::string, std::string> parse_storage(const std::string& text) {
  std::map<std::string, std::string> storages;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(';', start), text.size());
    const std::string pair = text.substr(start, end - start);
    start = end + 1;
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("treadle.storage: \"{}\" is given, NAME=STORAGE is expected", pair));
    storage_type(storages[pair.substr(0, equals)] = pair.substr(equals + 1));
  }
  return storages;
}

std::string_view name_of(StorageType storage) {
  for (const auto& [name, known] : kNames)
    if (known == storage && name != "default") return name;
  return "dense";
}

std::map<ValueId, StorageType> infer_storage(Graph& graph, const std::map<std::string, std::string>& inputs,
                                             const std::function<void(const std::string&)>& fallback) {
  std::vector<std::string> names;
  for (ValueId input : graph.inputs) names.push_back(graph.value(input).name);
  for (const auto& [name, storage] : inputs)  // includes initializers, because callers may feed them
    if (const ValueId id = graph.find_value(name); id == kNoValue || graph.value(id).kind == Value::Kind::computed)
      throw Error(ErrorCode::not_found,
                  fmt::format("treadle.storage names \"{}\", which is no input; the nearest: {}", name, nearest_names(name, names)));
  Rewriter rewriter(graph);
  Storages storages(rewriter, fallback);
  bool any = false;
  for (ValueId input : graph.inputs) {
    auto found = inputs.find(graph.value(input).name);
    if (found == inputs.end() || storage_type(found->second) == StorageType::dense) continue;
    storages.make_sparse(input, storage_type(found->second));
    any = true;
  }
  if (any)
    for (NodeId id : graph.order()) storages.visit(id);
  return storages.take();
}

}  // namespace treadle::passes
