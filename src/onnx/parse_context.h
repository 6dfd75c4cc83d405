// The state shared by the functions that parse the parts of a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "onnx/external_data.h"
#include "onnx/model_def.h"
#include "onnx/parse.h"
#include "onnx/wire.h"

namespace treadle::onnx {

struct ParseContext {
  const ReadOptions& options;
  std::shared_ptr<Storage> owner;  // owner of the bytes that are read; null: tensors cannot be views of these bytes
  ExternalFiles external;
  Place place;
  size_t messages = 0;
  int graph_depth = 0, type_depth = 0;
  bool in_constant = false;  // true while parsing a graph's initializer or a Constant's attribute, which may be unaligned

  /// Counts a message that becomes a struct, and throws if there are too many.
  void count_message() {
    if (++messages > options.max_messages)
      place.fail(ErrorCode::resource_exhausted,
                 "more than " + std::to_string(options.max_messages) + " nodes, attributes, tensors and types (max_messages)");
  }
};

/// Enters one level of nesting while this object exists, and throws if there are too many.
class Nesting {
 public:
  Nesting(const ParseContext& context, int& depth, const char* what) : depth_(depth) {
    if (depth >= context.options.max_nesting_depth)
      context.place.fail(std::string(what) + " nested more than " + std::to_string(context.options.max_nesting_depth) +
                         " deep (max_nesting_depth)");
    ++depth_;
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

// These functions parse one message into `out`. If a message that should occur once is repeated, its fields are merged, as in protobuf.
void parse_model(ParseContext& context, WireReader reader, ModelDef& out);
void parse_graph(ParseContext& context, WireReader reader, GraphDef& out);
void parse_node(ParseContext& context, WireReader reader, NodeDef& out);
void parse_attribute(ParseContext& context, WireReader reader, AttributeDef& out);
void parse_type(ParseContext& context, WireReader reader, TypeDef& out);
void parse_value_info(ParseContext& context, WireReader reader, ValueInfoDef& out);
void parse_property(ParseContext& context, WireReader reader, Properties& out);
/// Unlike those above, these functions replace `out`, since merging two tensors has no meaning.
void parse_tensor(ParseContext& context, WireReader reader, TensorDef& out);
/// Parses a tensor that becomes a constant of a graph.
void parse_initializer(ParseContext& context, WireReader reader, TensorDef& out);
void parse_sparse_tensor(ParseContext& context, WireReader reader, SparseTensorDef& out);

/// Parses a model in ONNX Runtime's format. @throws Error(invalid_model, not_implemented)
void parse_ort_model(ParseContext& context, std::string_view bytes, ModelDef& out);
/// Replaces operators of com.microsoft.nchwc by ONNX's operators. @throws Error(not_implemented) for unknown ones
void unblock_channels(const ParseContext& context, ModelDef& model);
/// Returns true if the bytes begin as ONNX Runtime's format does.
bool is_ort_model(std::string_view bytes);

// Checks an opset that a model imports, in ONNX's or ONNX Runtime's format.
void check_opset(const ParseContext& context, const OpsetImport& opset);
/// Sets dtype and shape of a tensor. @return size of its elements in bytes
size_t settle_type(const ParseContext& context, int32_t data_type, const std::vector<int64_t>& dims, TensorDef& out);
void check_raw_size(const ParseContext& context, const TensorDef& tensor, size_t size, size_t needed);
/// Checks a sparse tensor, and converts its indices to int64.
void settle_sparse(const ParseContext& context, SparseTensorDef& sparse);
/// Makes a tensor of packed elements. It is a view if `owner` owns the bytes, and if their alignment and size permit it; otherwise a copy.
Tensor tensor_of_bytes(const ParseContext& context, DType dtype, const Shape& shape, std::string_view bytes,
                       const std::shared_ptr<Storage>& owner, size_t& copied_bytes);
/// Converts ONNX's number for the dtype of a map's keys.
DType parse_map_key(const ParseContext& context, int32_t number);

/// Runs `act`, and adds the place in the model to errors that do not contain it, such as overflow or lack of memory.
template <typename Do>
void placed(const ParseContext& context, const Do& act) {
  try {
    act();
  } catch (Error& error) {
    error.add_context("reading " + context.place.text());
    throw;
  }
}

/// Converts ONNX's number for a dtype. @throws Error(not_implemented) for an unknown number
DType parse_dtype(const ParseContext& context, int32_t number);

/// Appends an element to `list` and parses it. In errors, the field's name and the index say where the error is.
template <typename T, typename Parse>
void parse_element(ParseContext& context, const WireReader& reader, const char* field, std::vector<T>& list, Parse parse) {
  context.count_message();
  T element;
  {
    const std::string* name = nullptr;
    if constexpr (requires { element.name; }) name = &element.name;
    Place::Step step(context.place, field, list.size(), name);
    parse(context, reader.message(), element);
  }
  list.push_back(std::move(element));
}

}  // namespace treadle::onnx
