// Inference of types, symbolic shapes and elements of small integer tensors.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/short_vector.h"
#include "graph/op_def.h"

namespace treadle {

/// Elements of a small integer tensor, row-major; may be symbols.
using KnownValues = std::vector<Dim>;

/// Elements of larger tensors are not tracked, as shapes and axes are short.
inline constexpr int64_t kMaxKnownValues = 64;

/// Context of an operator's `infer`. Used before a run with symbolic extents. For data-dependent shapes, used again during the run, with
/// integers and actual tensors.
class InferContext {
 public:
  struct Operand {
    const Type* type = nullptr;                         // null: the input is absent
    const Tensor* constant = nullptr;                   // elements, if the operand is a constant or given in the run
    const std::optional<KnownValues>* known = nullptr;  // elements as integers or symbols, if known in another way
    std::optional<KnownValues> known_values() const;
  };
  using InferBody = std::function<std::vector<Type>(const Body&, std::span<const Type>)>;

  InferContext(const Node& node, SymbolTable& symbols, std::span<const Operand> inputs, InferBody infer_body);

  const Node& node() const { return node_; }
  const Attributes& attributes() const { return node_.attributes; }
  int num_inputs() const { return node_.num_formal_inputs; }
  int num_outputs() const { return static_cast<int>(node_.outputs.size()); }
  bool has_input(int i) const { return node_.has_input(static_cast<size_t>(i)); }
  bool has_output(int i) const { return node_.has_output(static_cast<size_t>(i)); }

  // Inputs. The type of an absent input is unknown.
  const Type& input(int i) const;
  DType dtype(int i) const { return input(i).dtype; }
  bool has_rank(int i) const { return input(i).has_rank(); }
  int rank(int i) const { return input(i).rank(); }
  const SymbolicShape& shape(int i) const { return *input(i).shape; }
  /// Returns the tensor of a constant input; null if its elements are unknown.
  const Tensor* constant(int i) const;
  /// Returns the elements of an integer input (int64, int32 etc.) as integers or symbols; nullopt if they are unknown.
  std::optional<KnownValues> known(int i) const;
  /// Like known(), but returns nullopt if any element is a symbol.
  std::optional<std::vector<int64_t>> known_ints(int i) const;

  // Access to attributes.
  int64_t get_int(std::string_view name, int64_t otherwise = 0) const { return attributes().get_int(name, otherwise); }
  float get_float(std::string_view name, float otherwise = 0) const { return attributes().get_float(name, otherwise); }
  std::string_view get_string(std::string_view name, std::string_view otherwise = {}) const {
    return attributes().get_string(name, otherwise);
  }
  const std::vector<int64_t>& get_ints(std::string_view name) const { return attributes().get_ints(name); }
  int axis(std::string_view name, int64_t otherwise, int rank) const;

  // Outputs. Everything that is not set stays unknown.
  void set_output(int i, Type type);
  void set_output(int i, DType dtype, SymbolicShape shape) { set_output(i, Type::tensor(dtype, std::move(shape))); }
  /// Sets the dtype only; the rank stays unknown.
  void set_output_dtype(int i, DType dtype) { set_output(i, Type::tensor(dtype)); }
  void set_known(int i, KnownValues values);
  /// Returns a new extent that becomes known only in the run.
  Dim data_dependent_dim(std::string_view hint) { return symbols_.fresh_symbol(hint, true); }
  SymbolicShape data_dependent_shape(std::string_view hint, int rank);

  // Access to bodies.
  const Body& body(std::string_view attribute) const;
  /// Infers a body for these types of its formal inputs, and adds the captured inputs itself. Returns the types of the body's outputs. The
  /// first call merges the types with those declared in the body. Further calls (for a loop, with weaker types) use only the given types.
  std::vector<Type> infer_body(const Body& body, std::span<const Type> formal_inputs);

  // Results. The caller of `infer` reads them.
  struct Output {
    Type type;
    std::optional<KnownValues> known;
  };
  ShortVector<Output> outputs;

 private:
  const Node& node_;
  SymbolTable& symbols_;
  std::span<const Operand> inputs_;
  InferBody infer_body_;
};

/// Returns `axis` in [0, rank). @throws Error(invalid_argument) naming `what` if it is outside [-rank, rank)
int normalize_axis(int64_t axis, int rank, std::string_view what = "axis");

struct InferOptions {
  /// Called with a warning if a declared shape contradicts the inferred shape, which is used.
  std::function<void(const std::string&)> warn;
};

/// Infers all nodes of the graph and its bodies in order, and stores the types in the values. @throws Error naming the node
/// @return true if anything known about a value has changed
bool infer(Graph& graph, const InferOptions& options = {});
/// Infers one node from the types of its inputs, and adds the results to what is known about its outputs. @return as infer()
bool infer_node(Graph& graph, NodeId id, const InferOptions& options = {});

/// Merges two types, extent by extent. Integers have priority over symbols; if the two types contradict each other, `inferred` is used.
Type merge(const Type& inferred, const Type& declared, bool* contradiction = nullptr);

}  // namespace treadle
