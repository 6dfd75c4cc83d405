// The state that the functions which parse the parts of a model share.
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
  std::shared_ptr<Storage> owner;  // owner of the bytes that are read; null: no tensor can be a view of them
  ExternalFiles external;
  Place place;
  size_t messages = 0;
  int graph_depth = 0, type_depth = 0;
  bool in_constant = false;  // parsing an initializer of a graph or the attribute of a Constant, which may be unaligned

  /// Counts a message that becomes a struct, and throws beyond the limit.
  void count_message() {
    if (++messages > options.max_messages)
      place.fail(ErrorCode::resource_exhausted,
                 "more than " + std::to_string(options.max_messages) + " nodes, attributes, tensors and types (max_messages)");
  }
};

/// Counts a level of nesting while this object exists.
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
/// These functions replace `out` instead, since merging two tensors has no meaning.
void parse_tensor(ParseContext& context, WireReader reader, TensorDef& out);
/// Parses a tensor that becomes a constant of a graph.
void parse_initializer(ParseContext& context, WireReader reader, TensorDef& out);
void parse_sparse_tensor(ParseContext& context, WireReader reader, SparseTensorDef& out);

/// Parses a model in ONNX Runtime's format. @throws Error(invalid_model, not_implemented)
void parse_ort_model(ParseContext& context, std::string_view bytes, ModelDef& out);
/// Replaces operators of com.microsoft.nchwc by ONNX's. @throws Error(not_implemented) for unknown ones
void unblock_channels(const ParseContext& context, ModelDef& model);
/// Returns true if the bytes begin like ONNX Runtime's format.
bool is_ort_model(std::string_view bytes);

// Checks an opset of a model in ONNX's or ONNX Runtime's format.
void check_opset(const ParseContext& context, const OpsetImport& opset);
/// Sets dtype and shape. @return size of the elements in bytes
size_t settle_type(const ParseContext& context, int32_t data_type, const std::vector<int64_t>& dims, TensorDef& out);
void check_raw_size(const ParseContext& context, const TensorDef& tensor, size_t size, size_t needed);
/// Checks a sparse tensor, and converts its indices to int64.
void settle_sparse(const ParseContext& context, SparseTensorDef& sparse);
/// Makes a tensor of packed elements. It is a view if `owner` owns them and their alignment and size permit; otherwise a copy.
Tensor tensor_of_bytes(const ParseContext& context, DType dtype, const Shape& shape, std::string_view bytes,
                       const std::shared_ptr<Storage>& owner, size_t& copied_bytes);
/// Returns the dtype of a map's keys for its ONNX number.
DType parse_map_key(const ParseContext& context, int32_t number);

/// Adds the place in the model to errors of code that does not know it, such as overflow or lack of memory.
template <typename Do>
void placed(const ParseContext& context, const Do& act) {
  try {
    act();
  } catch (Error& error) {
    error.add_context("reading " + context.place.text());
    throw;
  }
}

/// Converts ONNX's number of a dtype. @throws Error(not_implemented) for an unknown number
DType parse_dtype(const ParseContext& context, int32_t number);

/// Appends an element to `list` and parses it, with the field's name and index as the place in errors.
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
