// Reads ONNX Runtime's model format (*.ort): a flat buffer with the identifier "ORTM" that contains the same information as an ONNX file.
// Field numbers are those of the format's schema. Parts for ONNX Runtime's own kernels and optimizers are not read: edges, kernel types,
// runtime optimizations.
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "core/base/utf8.h"
#include "onnx/parse_context.h"

namespace treadle::onnx {
namespace {

constexpr char kNewestVersion = '6';

/// The bytes of a flat buffer. Every read is checked and its bytes are counted, because many 4-byte offsets in a hostile file could refer
/// to the same large object.
class FlatFile {
 public:
  FlatFile(ParseContext& context, std::string_view bytes)
      : context(context),
        bytes_(bytes),
        tables_left_(bytes.size() / kLeastTableBytes),
        bytes_left_(kBytesPerByte * bytes.size() + kSpareBytes) {}

  template <typename T>
  T number(size_t at) const {
    T value;
    std::memcpy(&value, range(at, sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view range(size_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) fail("it is cut off, or an offset in it leads beyond its end");
    return bytes_.substr(at, static_cast<size_t>(size));
  }
  /// Follows the offset that is stored at `at`. Offsets lead forwards, so no object can contain itself.
  size_t target(size_t at) const {
    const auto offset = number<uint32_t>(at);
    if (offset == 0 || offset > bytes_.size() - at) fail("an offset in it leads beyond its end");
    return at + offset;
  }
  void count_table() {
    if (tables_left_-- == 0) fail("its tables are used more than once");
    context.count_message();
  }
  void count(uint64_t bytes) {
    if (bytes > bytes_left_) fail("its texts and numbers are used more often than it has bytes");
    bytes_left_ -= bytes;
  }
  [[noreturn]] void fail(const std::string& why) const {
    context.place.fail(Fault::Kind::ort_format, "ORT model verification failed: " + why);  // ONNX Runtime's text, for which programs search
  }

  ParseContext& context;

 private:
  static constexpr size_t kLeastTableBytes = 8;  // a table has at least an offset to its vtable, and is the target of one offset
  static constexpr uint64_t kBytesPerByte = 32, kSpareBytes = 1 << 20;  // limit of copied bytes, as a name is copied for each of its uses

  std::string_view bytes_;
  size_t tables_left_;
  uint64_t bytes_left_;
};

/// A vector of numbers or of offsets, at a position of the file.
struct FlatVector {
  size_t at = 0;
  uint32_t size = 0;
};

class FlatTable {
 public:
  FlatTable(FlatFile& file, size_t at) : file_(&file), at_(at) {
    file.count_table();
    fields_at_ = at - static_cast<size_t>(static_cast<int64_t>(file.number<int32_t>(at)));
    fields_bytes_ = file.number<uint16_t>(fields_at_);
  }
  FlatFile& file() const { return *file_; }

  /// Returns the position of a field of the table; nullopt if the field is absent.
  std::optional<size_t> place(int field) const {
    const size_t entry = 4 + 2 * static_cast<size_t>(field);
    if (entry + 2 > fields_bytes_) return std::nullopt;
    const auto offset = file_->number<uint16_t>(fields_at_ + entry);
    return offset == 0 ? std::nullopt : std::optional(at_ + offset);
  }
  template <typename T>
  T number(int field, T absent = 0) const {
    const auto at = place(field);
    return at ? file_->number<T>(*at) : absent;
  }
  std::optional<FlatTable> table(int field) const {
    const auto at = place(field);
    return at ? std::optional(FlatTable(*file_, file_->target(*at))) : std::nullopt;
  }
  FlatVector vector(int field, size_t element_bytes) const {
    const auto at = place(field);
    return at ? vector_at(file_->target(*at), element_bytes) : FlatVector{};
  }
  std::string_view raw(int field) const {
    const FlatVector found = vector(field, 1);
    return file_->range(found.at, found.size);
  }
  std::string bytes(int field) const {
    const std::string_view found = raw(field);
    file_->count(found.size());
    return std::string(found);
  }
  std::string text(int field) const { return checked_text(bytes(field)); }
  template <typename T>
  std::vector<T> numbers(int field) const {
    const FlatVector found = vector(field, sizeof(T));
    file_->count(uint64_t{sizeof(T)} * found.size);
    std::vector<T> all(found.size);
    if (!all.empty()) std::memcpy(all.data(), file_->range(found.at, all.size() * sizeof(T)).data(), all.size() * sizeof(T));
    return all;
  }
  /// Returns a list of strings. @param is_text  true: the strings must be UTF-8; false: they may contain any bytes
  std::vector<std::string> texts(int field, bool is_text = true) const {
    const FlatVector found = vector(field, kOffsetBytes);
    file_->count(uint64_t{sizeof(std::string)} * found.size);
    std::vector<std::string> all(found.size);
    for (size_t i = 0; i < all.size(); ++i) {
      const FlatVector one = vector_at(file_->target(found.at + i * kOffsetBytes), 1);
      file_->count(one.size);
      all[i] = file_->range(one.at, one.size);
      if (is_text) checked_text(all[i]);
    }
    return all;
  }
  /// Reads each table of a list into an element of `list`. In errors, an element's name or index says where the error is.
  template <typename T, typename Read>
  void each(int field, const char* name, std::vector<T>& list, const Read& read) const {
    const FlatVector found = vector(field, kOffsetBytes);
    for (uint32_t i = 0; i < found.size; ++i) {
      T element;
      {
        const std::string* called = nullptr;
        if constexpr (requires { element.name; }) called = &element.name;
        Place::Step step(file_->context.place, name, i, called);
        read(FlatTable(*file_, file_->target(found.at + i * kOffsetBytes)), element);
      }
      list.push_back(std::move(element));
    }
  }

 private:
  static constexpr size_t kOffsetBytes = 4;

  FlatVector vector_at(size_t at, size_t element_bytes) const {
    const FlatVector found{at + sizeof(uint32_t), file_->number<uint32_t>(at)};
    file_->range(found.at, uint64_t{element_bytes} * found.size);
    return found;
  }
  std::string checked_text(std::string text) const {
    if (!is_utf8(text)) file_->fail("it has a text that is not UTF-8: " + in_quotes(text));
    return text;
  }

  FlatFile* file_;
  size_t at_, fields_at_;
  size_t fields_bytes_;
};

void read_property(const FlatTable& from, Properties& out) { out.emplace_back(from.text(0), from.text(1)); }

void read_properties(const FlatTable& from, int field, Properties& out) {
  std::vector<Properties> entries;
  from.each(field, "metadata_props", entries, read_property);
  for (Properties& entry : entries) out.append(entry);
}

void read_dim(const FlatTable& from, DimDef& out) {
  out.denotation = from.text(1);
  const auto value = from.table(0);
  if (!value) return;
  enum : int8_t { kNumber = 1, kName = 2 };
  switch (value->number<int8_t>(0)) {
    case kNumber:
      out.kind = DimDef::Kind::value;
      out.value = value->number<int64_t>(1);
      break;
    case kName:
      out.param = value->text(2);
      if (!out.param.empty()) out.kind = DimDef::Kind::param;
      break;
    default: break;
  }
}

void read_type(const FlatTable& from, TypeDef& out) {
  ParseContext& context = from.file().context;
  Nesting nesting(context, context.type_depth, "types");
  out.denotation = from.text(0);
  const auto value = from.table(2);
  if (!value) return;
  enum : uint8_t { kTensor = 1, kSequence = 2, kMap = 3 };
  const auto kind = from.number<uint8_t>(1);
  if (kind == kTensor) {
    out.kind = TypeDef::Kind::tensor;
    out.elem_type = parse_dtype(context, value->number<int32_t>(0));
    if (const auto shape = value->table(1)) shape->each(0, "dim", out.shape.emplace(), read_dim);
    return;
  }
  if (kind != kSequence && kind != kMap)
    context.place.fail(ErrorCode::not_implemented, "a type of the kind " + std::to_string(kind) + ", which is not known");
  out.kind = kind == kMap ? TypeDef::Kind::map : TypeDef::Kind::sequence;
  if (kind == kMap) out.key_type = parse_map_key(context, value->number<int32_t>(0));
  const auto element = value->table(kind == kMap ? 1 : 0);
  if (!element) return;
  out.elem = std::make_unique<TypeDef>();
  read_type(*element, *out.elem);
}

void read_value_info(const FlatTable& from, ValueInfoDef& out) {
  out.name = from.text(0);
  out.doc_string = from.text(1);
  if (const auto type = from.table(2)) read_type(*type, out.type);
}

void read_tensor(const FlatTable& from, TensorDef& out) {
  ParseContext& context = from.file().context;
  out.name = from.text(0);
  out.doc_string = from.text(1);
  placed(context, [&] {
    const size_t needed = settle_type(context, from.number<int32_t>(3), from.numbers<int64_t>(2), out);
    if (from.number<int64_t>(6, -1) >= 0)
      context.place.fail(ErrorCode::not_implemented, "the elements are in a file of a training checkpoint, which is not read");
    if (out.dtype != DType::string) {
      const std::string_view raw = from.raw(4);
      check_raw_size(context, out, raw.size(), needed);
      size_t copied = 0;
      out.value = tensor_of_bytes(context, out.dtype, out.shape, raw, context.owner, copied);
      from.file().count(copied);
      return;
    }
    std::vector<std::string> texts = from.texts(5, /*is_text=*/false);
    if (texts.size() != static_cast<size_t>(out.shape.num_elements()))
      context.place.fail("has " + std::to_string(texts.size()) + " texts, its shape needs " + std::to_string(out.shape.num_elements()));
    out.value = Tensor(out.dtype, out.shape);
    std::move(texts.begin(), texts.end(), reinterpret_cast<std::string*>(out.value.raw()));
  });
}

void read_initializer(const FlatTable& from, TensorDef& out) {
  bool& in_constant = from.file().context.in_constant;
  in_constant = true;
  read_tensor(from, out);
  in_constant = false;
}

void read_sparse_tensor(const FlatTable& from, SparseTensorDef& out) {
  const auto values = from.table(0), indices = from.table(1);
  if (!values || !indices) from.file().fail("a sparse tensor has no values, or no indices");
  read_tensor(*values, out.values);
  read_tensor(*indices, out.indices);
  out.dims = from.numbers<int64_t>(2);
  placed(from.file().context, [&] { settle_sparse(from.file().context, out); });
}

void read_graph(const FlatTable& from, GraphDef& out);

void read_attribute(const FlatTable& from, AttributeDef& out) {
  out.name = from.text(0);
  out.doc_string = from.text(1);
  const ParseContext& context = from.file().context;
  const auto type = from.number<int32_t>(2);
  // Reads the nested table that an attribute of this type must contain.
  auto single = [&](int field) {
    const auto found = from.table(field);
    if (!found) context.place.fail("an attribute without the value that its type asks for");
    return *found;
  };
  out.type = static_cast<AttributeType>(type);
  switch (type) {
    case 1: out.f = from.number<float>(3); break;
    case 2: out.i = from.number<int64_t>(4); break;
    case 3: out.s = from.bytes(5); break;
    case 4: read_tensor(single(6), *(out.t = std::make_unique<TensorDef>())); break;
    case 5: read_graph(single(7), *(out.g = std::make_unique<GraphDef>())); break;
    case 6: out.floats = from.numbers<float>(8); break;
    case 7: out.ints = from.numbers<int64_t>(9); break;
    case 8: out.strings = from.texts(10, /*is_text=*/false); break;
    case 9: from.each(11, "tensors", out.tensors, read_tensor); break;
    case 10: from.each(12, "graphs", out.graphs, read_graph); break;
    default:
      context.place.fail(ErrorCode::not_implemented,
                         "an attribute of the type " + std::to_string(type) + ", which this format does not have");
  }
}

void read_node(const FlatTable& from, NodeDef& out) {
  out.name = from.text(0);
  out.doc_string = from.text(1);
  out.domain = from.text(2);
  out.op_type = from.text(5);
  if (out.op_type.empty()) from.file().fail("a node in it has no operator");
  out.inputs = from.texts(8);
  out.outputs = from.texts(9);
  bool& in_constant = from.file().context.in_constant;
  in_constant = out.op_type == "Constant";
  from.each(10, "attribute", out.attributes, read_attribute);
  in_constant = false;
}

uint64_t bytes_of(const TypeDef& type) {
  uint64_t bytes = sizeof(ValueInfoDef) + type.denotation.size();
  if (type.shape)
    for (const DimDef& dim : *type.shape) bytes += sizeof(DimDef) + dim.param.size() + dim.denotation.size();
  return bytes + (type.elem ? bytes_of(*type.elem) : 0);
}

using Known = std::unordered_map<std::string, const ValueInfoDef*>;

/// Returns the values whose names a field lists. Their types come from the graph's list of values.
std::vector<ValueInfoDef> named(const FlatTable& from, int field, const Known& known) {
  std::vector<ValueInfoDef> found;
  for (const std::string& name : from.texts(field)) {
    const auto info = known.find(name);
    if (info == known.end()) {
      found.emplace_back().name = name;
      continue;
    }
    from.file().count(bytes_of(info->second->type) + info->second->doc_string.size());
    found.push_back(*info->second);
  }
  return found;
}

void read_graph(const FlatTable& from, GraphDef& out) {
  ParseContext& context = from.file().context;
  Nesting nesting(context, context.graph_depth, "graphs");
  from.each(0, "initializer", out.initializers, read_initializer);
  from.each(2, "node", out.nodes, read_node);
  from.each(7, "sparse_initializer", out.sparse_initializers, read_sparse_tensor);
  std::vector<ValueInfoDef> values;
  from.each(1, "value_info", values, read_value_info);
  Known known;
  for (const ValueInfoDef& value : values) known.emplace(value.name, &value);
  out.inputs = named(from, 5, known);
  out.outputs = named(from, 6, known);
  std::unordered_set<std::string> made;  // names of values that this graph's nodes compute; other names belong to a surrounding graph
  for (const NodeDef& node : out.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  for (const ValueInfoDef& output : out.outputs) made.erase(output.name);
  std::erase_if(values, [&](const ValueInfoDef& value) { return value.name.empty() || !made.contains(value.name); });
  out.value_info = std::move(values);
}

}  // namespace

void parse_ort_model(ParseContext& context, std::string_view bytes, ModelDef& out) {
  FlatFile file(context, bytes);
  if (!is_ort_model(bytes)) file.fail("it does not begin as a model in ONNX Runtime's format (.ort)");
  const FlatTable session(file, file.target(0));
  const std::string version = session.text(0);
  if (version.size() != 1 || version[0] < '0' || version[0] > kNewestVersion)
    context.place.fail(ErrorCode::not_implemented,
                       "The ORT format model version [" + version + "] is not supported; versions up to " + kNewestVersion + " are");
  const auto model = session.table(1);
  const auto graph = model ? model->table(7) : std::nullopt;
  if (!graph) file.fail("it has no graph");
  out.ir_version = model->number<int64_t>(0);
  model->each(1, "opset_import", out.opset_imports, [&](const FlatTable& from, OpsetImport& opset) {
    opset.domain = from.text(0);
    opset.version = from.number<int64_t>(1);
    check_opset(context, opset);
  });
  out.producer_name = model->text(2);
  out.producer_version = model->text(3);
  out.domain = model->text(4);
  out.model_version = model->number<int64_t>(5);
  out.doc_string = model->text(6);
  read_properties(*model, 9, out.metadata_props);
  Place::Step step(context.place, "graph");
  read_graph(*graph, out.graph);
  out.graph.doc_string = model->text(8);
  unblock_channels(context, out);
}

}  // namespace treadle::onnx
