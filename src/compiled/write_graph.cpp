#include <fmt/format.h>

#include <algorithm>

#include "compiled/graph_stream.h"
#include "graph/custom_ops.h"
#include "graph/op_def.h"

namespace treadle::compiled {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

class GraphWriter {
 public:
  GraphWriter(Writer& out, TensorList& tensors) : out_(out), tensors_(tensors) {}

  void symbols(const SymbolTable& table) {
    out_.count(table.size());
    for (size_t i = 0; i < table.size(); ++i) {
      const Expr& expr = table[i];
      out_.put(expr.kind);
      out_.put<uint8_t>(expr.data_dependent);
      out_.text(expr.symbol);
      out_.count(expr.terms.size());
      for (const Expr::Term& term : expr.terms) {
        out_.put(term.coefficient);
        out_.count(term.factors.size());
        for (const Expr* factor : term.factors) out_.put(factor->index);
      }
      dim(expr.a);
      dim(expr.b);
    }
  }

  void program(const exec::Program& program) {
    const Graph& graph = program.graph();
    std::unordered_map<const Node*, const exec::Instruction*> instructions;
    for (const exec::Instruction& instruction : program.instructions()) instructions.emplace(instruction.node, &instruction);
    const std::vector<ValueId> kept = kept_values(graph);
    std::unordered_map<ValueId, uint32_t> numbers;
    for (ValueId id : kept) numbers.emplace(id, static_cast<uint32_t>(numbers.size()));
    auto number = [&](ValueId id) { out_.put(id == kNoValue ? kNone : numbers.at(id)); };
    auto list = [&](const std::vector<ValueId>& ids) {
      out_.count(ids.size());
      for (ValueId id : ids) number(id);
    };

    out_.text(graph.name);
    out_.count(graph.opsets.size());
    for (const auto& [domain, version] : graph.opsets) out_.text(domain), out_.put(version);
    pairs(graph.metadata);
    out_.count(kept.size());
    for (ValueId id : kept) value(graph.value(id));
    list(graph.inputs);
    list(graph.overridable_initializers);
    out_.count(graph.num_nodes());
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
      const Node& written = graph.node(id);
      auto found = instructions.find(&written);
      const exec::Instruction* instruction = found == instructions.end() ? nullptr : found->second;
      node(written);
      list(written.inputs);
      out_.put(written.num_formal_inputs);
      list(written.outputs);
      out_.count(written.bodies.size());
      if (!written.bodies.empty() && (!instruction || instruction->bodies.size() != written.bodies.size()))
        throw Error(ErrorCode::not_implemented, describe(written) + " has bodies that no instruction runs");
      for (size_t b = 0; b < written.bodies.size(); ++b) {
        const Body& body = written.bodies[b];
        out_.text(body.attribute);
        this->program(*instruction->bodies[b]);
        out_.count(body.captures.size());
        const std::vector<ValueId> inner = kept_values(*body.graph);
        for (const auto& [inside, position] : body.captures) {
          auto at = std::lower_bound(inner.begin(), inner.end(), inside);
          out_.put(static_cast<uint32_t>(at - inner.begin()));
          out_.put(position);
        }
      }
      state(instruction);
    }
    list(graph.outputs);
    out_.count(graph.output_names.size());
    for (const std::string& name : graph.output_names) out_.text(name);
    out_.count(graph.declared_outputs.size());
    for (const Type& declared : graph.declared_outputs) type(declared);
  }

 private:
  // Returns the values that inputs, outputs or nodes of the graph use, in the order of their ids. (Values captured by a body are its
  // inputs.)
  static std::vector<ValueId> kept_values(const Graph& graph) {
    std::vector<ValueId> kept;
    auto keep = [&](const std::vector<ValueId>& ids) {
      for (ValueId id : ids)
        if (id != kNoValue) kept.push_back(id);
    };
    keep(graph.inputs), keep(graph.outputs), keep(graph.overridable_initializers);
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) keep(graph.node(id).inputs), keep(graph.node(id).outputs);
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    return kept;
  }

  void pairs(const Properties& items) {
    out_.count(items.size());
    for (const auto& [key, text] : items) out_.text(key), out_.text(text);
  }

  void dim(const Dim& written) {
    out_.put<uint8_t>(!written.is_const());
    out_.put(written.is_const() ? written.value() : int64_t{written.expr()->index});
  }

  void type(const Type& written) {
    out_.put(written.kind);
    out_.put(written.dtype);
    out_.put(written.key_dtype);
    out_.put<uint8_t>(written.shape.has_value());
    if (written.shape) {
      out_.count(written.shape->size());
      for (const Dim& extent : *written.shape) dim(extent);
    }
    out_.put<uint8_t>(written.element != nullptr);
    if (written.element) type(*written.element);
  }

  void tensor(const Tensor& written) {
    out_.put(written.dtype());
    out_.count(static_cast<size_t>(written.shape().rank()));
    for (int64_t extent : written.shape().dims()) out_.put(extent);
    if (written.dtype() != DType::string) return out_.put(tensors_.add(written));
    const Tensor dense = written.contiguous();
    for (const std::string& element : dense.span<std::string>()) out_.text(element);
  }

  // Writes a flag and, if it is 1, the tensor. The flag is 0 for a constant of which the file contains only packed copies.
  void datum(const Datum& written) {
    if (written.defined() && !written.is_tensor())
      throw Error(ErrorCode::not_implemented, fmt::format("a constant is {}, not a tensor", describe(written)));
    out_.put<uint8_t>(written.defined());
    if (written.defined()) tensor(written.tensor());
  }

  void value(const Value& written) {
    if (written.kind == Value::Kind::parameter) throw Error(ErrorCode::not_implemented, "the graph has parameters: it is for training");
    out_.text(written.name);
    out_.put(written.kind);
    type(written.type);
    if (written.is_constant()) datum(written.constant);
  }

  template <typename T>
  void item(const T& written) {
    if constexpr (std::is_arithmetic_v<T>)
      out_.put(written);
    else if constexpr (std::is_same_v<T, std::string>)
      out_.text(written);
    else if constexpr (std::is_same_v<T, Datum>)
      datum(written);
    else
      type(written);
  }
  template <typename T>
  void item(const std::vector<T>& written) {
    out_.count(written.size());
    for (const T& element : written) item(element);
  }

  void node(const Node& written) {
    if (is_custom_op(*written.op)) throw Error(ErrorCode::not_implemented, describe(written) + " is a custom operator");
    if (written.op->communicates) throw Error(ErrorCode::not_implemented, describe(written) + " trains over several processes");
    out_.text(written.name);
    out_.text(written.op_type);
    out_.text(written.domain);
    out_.text(written.overload);
    out_.put(written.version);
    out_.count(written.attributes.size());
    for (const auto& [name, attribute] : written.attributes) {
      out_.text(name);
      out_.put(static_cast<uint8_t>(attribute.index()));
      std::visit([&](const auto& held) { item(held); }, attribute);
    }
    out_.count(written.sources.size());
    for (const std::string& source : written.sources) out_.text(source);
    pairs(written.metadata);
  }

  void state(const exec::Instruction* instruction) {
    std::vector<PackedPart> parts;
    if (instruction && instruction->kernel && instruction->kernel->restore && instruction->packed) parts = instruction->packed->parts();
    out_.count(parts.size());
    if (parts.empty()) return;
    out_.text(instruction->kernel->name);
    for (const PackedPart& part : parts) {
      out_.put(part.id);
      tensor(part.tensor);
    }
  }

  Writer& out_;
  TensorList& tensors_;
};

}  // namespace

uint64_t TensorList::add(const Tensor& tensor) {
  if (tensor.dtype() == DType::string) throw Error(ErrorCode::not_implemented, "strings have no block of their own");
  Tensor dense = tensor.contiguous();
  const bool has_address = tensor.is_contiguous() && dense.size_bytes() > 0;
  if (has_address) {
    auto [found, fresh] = by_address_.try_emplace(dense.raw(), tensors_.size());
    if (!fresh && tensors_[found->second].size_bytes() == dense.size_bytes()) return found->second;
  }
  tensors_.push_back(std::move(dense));
  return tensors_.size() - 1;
}

void write_graph(Writer& out, const exec::Program& program, TensorList& tensors) {
  GraphWriter writer(out, tensors);
  writer.symbols(program.graph().symbols());
  writer.program(program);
}

}  // namespace treadle::compiled
