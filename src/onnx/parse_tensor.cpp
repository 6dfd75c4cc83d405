// Parses TensorProto and SparseTensorProto in two passes over the message. The first finds dtype, shape and the position of the elements;
// the second decodes them. Thus memory is allocated only once, and only if the message has enough bytes.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/base/checked.h"
#include "core/files/shared_storage.h"
#include "onnx/parse_context.h"

namespace treadle::onnx {
namespace {

// The fields of TensorProto that contain elements.
enum Field : uint32_t { kFloatData = 4, kInt32Data = 5, kStringData = 6, kInt64Data = 7, kRawData = 9, kDoubleData = 10, kUint64Data = 11 };
constexpr uint32_t kDataFields[] = {kFloatData, kInt32Data, kStringData, kInt64Data, kRawData, kDoubleData, kUint64Data};

/// Limit of the bytes of elements that are copied into memory, as a multiple of the file's size. Only a hostile model needs more.
constexpr size_t kMaxCopiesOfFile = 16;

const char* field_name(uint32_t field) {
  switch (field) {
    case kFloatData: return "float_data";
    case kInt32Data: return "int32_data";
    case kStringData: return "string_data";
    case kInt64Data: return "int64_data";
    case kRawData: return "raw_data";
    case kDoubleData: return "double_data";
    case kUint64Data: return "uint64_data";
    default: return "?";
  }
}

/// Says which typed field contains the elements of a dtype, and how many values of the field the elements take.
struct TypedField {
  uint32_t field;
  size_t num_values;
};

TypedField typed_field(DType dtype, size_t n) {
  switch (dtype) {
    case DType::float32: return {kFloatData, n};
    case DType::complex64: return {kFloatData, 2 * n};  // real and imaginary parts alternate
    case DType::float64: return {kDoubleData, n};
    case DType::complex128: return {kDoubleData, 2 * n};
    case DType::int64: return {kInt64Data, n};
    case DType::uint32:
    case DType::uint64: return {kUint64Data, n};
    case DType::string: return {kStringData, n};
    case DType::uint4:
    case DType::int4:
    case DType::float4e2m1: return {kInt32Data, (n + 1) / 2};  // each value is a byte with two elements
    case DType::uint2:
    case DType::int2: return {kInt32Data, (n + 3) / 4};  // each value is a byte with four elements
    default: return {kInt32Data, n};
  }
}

/// Returns the alignment that C++ needs to read an element. Kernels do not need more.
size_t natural_alignment(DType dtype) {
  size_t bytes = bits_of(dtype) / 8;
  if (dtype == DType::complex64 || dtype == DType::complex128) bytes /= 2;
  return std::max<size_t>(bytes, 1);
}

/// The results of the first pass over a message.
struct Outline {
  std::vector<int64_t> dims;
  int32_t data_type = 0;
  bool is_external = false;
  std::string_view raw, packed;  // raw: raw_data; packed: the last part of float_data or double_data that has Protobuf's packed encoding
  size_t num_pieces = 0;         // number of parts of float_data or double_data
  size_t payload[16] = {};       // for each field, an upper bound of its number of values

  uint32_t filled_field(const Place& place) const {
    uint32_t found = 0;
    for (uint32_t field : kDataFields) {
      if (payload[field] == 0) continue;
      if (found) place.fail(std::string("elements both in ") + field_name(found) + " and in " + field_name(field));
      found = field;
    }
    return found;
  }
};

void note_payload(const WireReader& reader, Outline& outline) {
  if (reader.field() == kFloatData || reader.field() == kDoubleData) {
    outline.packed = reader.is_packed() ? reader.bytes() : std::string_view();
    ++outline.num_pieces;
  }
  size_t& count = outline.payload[reader.field()];
  switch (reader.field()) {
    case kRawData:
      outline.raw = reader.bytes();
      count = outline.raw.size();
      break;
    case kStringData: count += 1; break;
    case kFloatData: count += reader.payload_bytes() / sizeof(float); break;
    case kDoubleData: count += reader.payload_bytes() / sizeof(double); break;
    default: count += reader.payload_bytes(); break;  // a varint has at least one byte
  }
}

uint64_t parse_number(const Place& place, std::string_view key, std::string_view text) {
  uint64_t value = 0;
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size())
    place.fail_outside("the " + std::string(key) + " of external data is " + in_quotes(text) + ", not a number of bytes");
  return value;
}

void parse_external_entry(ParseContext& context, WireReader reader, ExternalDataDef& out) {
  Properties entry;
  parse_property(context, reader, entry);
  const auto& [key, value] = entry[0];
  if (key == "location")
    out.location = value;
  else if (key == "offset")
    out.offset = parse_number(context.place, key, value);
  else if (key == "length")
    out.length = parse_number(context.place, key, value);
  else if (key == "checksum")
    out.checksum = value;
  else
    out.other.append(entry);
}

Outline read_outline(ParseContext& context, WireReader reader, TensorDef& out) {
  Outline outline;
  while (reader.next()) {
    switch (reader.field()) {
      case 1: reader.each_varint([&](uint64_t dim) { outline.dims.push_back(static_cast<int64_t>(dim)); }); break;
      case 2: outline.data_type = reader.int32(); break;
      case 3:
        context.place.fail(ErrorCode::not_implemented, "a tensor stored in segments; ONNX reserves them and defines no way to join them");
      case 8: out.name = reader.string(); break;
      case 12: out.doc_string = reader.string(); break;
      case 13: parse_external_entry(context, reader.message(), out.external); break;
      case 14: outline.is_external = reader.int32() == 1; break;
      case 16: parse_property(context, reader.message(), out.metadata_props); break;
      case kFloatData:
      case kInt32Data:
      case kStringData:
      case kInt64Data:
      case kRawData:
      case kDoubleData:
      case kUint64Data: note_payload(reader, outline); break;
      default: break;
    }
  }
  return outline;
}

/// Returns true if all bytes are 0 or 1. In C++, reading any other byte as bool is undefined behavior.
bool are_booleans(std::string_view bytes) {
  unsigned char seen = 0;
  for (char c : bytes) seen |= static_cast<unsigned char>(c);
  return seen <= 1;
}

Tensor read_external(ParseContext& context, const TensorDef& tensor, size_t needed) {
  const ExternalDataDef& external = tensor.external;
  if (tensor.dtype == DType::string) context.place.fail_outside("strings cannot be external data");
  if (external.length && *external.length != needed)
    context.place.fail_outside("the external data is said to be " + std::to_string(*external.length) + " bytes long, " +
                               std::string(short_name_of(tensor.dtype)) + to_string(tensor.shape) + " needs " + std::to_string(needed));
  ExternalFiles::File& file = context.external.open(context.place, external.location);
  size_t size = file.storage->size_bytes();
  if (external.offset > size || needed > size - external.offset)
    context.place.fail_outside("needs " + std::to_string(needed) + " bytes at " + std::to_string(external.offset) +
                               " of the external file " + in_quotes(external.location) + ", which has " + std::to_string(size));
  ExternalFiles::verify(context.place, external.location, file, external.checksum);
  if (file.copied_bytes / kMaxCopiesOfFile > size)
    context.place.fail(ErrorCode::resource_exhausted, "the external file " + in_quotes(external.location) + " of " + std::to_string(size) +
                                                          " bytes is used at odd addresses " + std::to_string(kMaxCopiesOfFile) +
                                                          " times over");
  std::string_view bytes(reinterpret_cast<const char*>(file.storage->data()) + external.offset, needed);
  return tensor_of_bytes(context, tensor.dtype, tensor.shape, bytes, file.storage, file.copied_bytes);
}

/// Decodes the values of a typed field one after the other into a tensor's memory.
class Decoder {
 public:
  Decoder(const ParseContext& context, Tensor& tensor, size_t num_values)
      : place_(context.place), dtype_(tensor.dtype()), data_(tensor.raw()), num_values_(num_values) {
    if (is_sub_byte(dtype_) && bits_of(dtype_) == 6) std::memset(data_, 0, tensor.size_bytes());  // zeroed first, as elements share bytes
  }

  void field(const WireReader& reader) {
    switch (reader.field()) {
      case kFloatData: return reader.each_fixed<float>([&](float value) { put(value); });
      case kDoubleData: return reader.each_fixed<double>([&](double value) { put(value); });
      case kStringData: return put_string(reader.bytes());
      case kInt64Data: return reader.each_varint([&](uint64_t value) { put(value); });
      case kUint64Data: return reader.each_varint([&](uint64_t value) { put_unsigned(value); });
      default: return reader.each_varint([&](uint64_t value) { put_int32(WireReader::narrow(value)); });
    }
  }

  void finish() const {
    if (count_ != num_values_) place_.fail("has " + std::to_string(count_) + " values, its shape needs " + std::to_string(num_values_));
  }

 private:
  size_t next() {
    if (count_ == num_values_) place_.fail("has more values than the " + std::to_string(num_values_) + " that its shape needs");
    return count_++;
  }
  template <typename T>
  void put(T value) {
    std::memcpy(data_ + next() * sizeof(T), &value, sizeof(T));
  }
  void put_string(std::string_view value) { reinterpret_cast<std::string*>(data_)[next()] = value; }
  void put_unsigned(uint64_t value) {
    if (dtype_ == DType::uint64) return put(value);
    if (value > UINT32_MAX) fail_range(std::to_string(value));
    put(static_cast<uint32_t>(value));
  }
  void put_int32(int32_t value) {
    switch (dtype_) {
      case DType::int32: return put(value);
      case DType::boolean: return put(static_cast<uint8_t>(value != 0));
      case DType::int8: return put_between<int8_t>(value, INT8_MIN, INT8_MAX);
      case DType::uint8: return put_between<uint8_t>(value, 0, UINT8_MAX);
      case DType::int16: return put_between<int16_t>(value, INT16_MIN, INT16_MAX);
      case DType::uint16: return put_between<uint16_t>(value, 0, UINT16_MAX);
      // The number contains the bits of the float. Some writers sign-extend these bits.
      case DType::float16:
      case DType::bfloat16: return put_between<uint16_t>(value, INT16_MIN, UINT16_MAX);
      case DType::float6e2m3:
      case DType::float6e3m2: return put_six_bits(value);
      default: return put_between<uint8_t>(value, INT8_MIN, UINT8_MAX);
    }
  }
  template <typename T>
  void put_between(int32_t value, int32_t low, int32_t high) {
    if (value < low || value > high) fail_range(std::to_string(value));
    put(static_cast<T>(value));
  }
  void put_six_bits(int32_t value) {
    if (value < 0 || value > 63) fail_range(std::to_string(value));
    size_t bit = next() * 6;
    uint32_t shifted = static_cast<uint32_t>(value) << (bit % 8);
    data_[bit / 8] |= static_cast<std::byte>(shifted & 0xff);
    if (shifted > 0xff) data_[bit / 8 + 1] |= static_cast<std::byte>(shifted >> 8);
  }
  [[noreturn]] void fail_range(const std::string& value) const {
    place_.fail("the value " + value + " (number " + std::to_string(count_) + ") is outside " + std::string(name_of(dtype_)));
  }

  const Place& place_;
  DType dtype_;
  std::byte* data_;
  size_t num_values_, count_ = 0;
};

Tensor read_value(ParseContext& context, WireReader reader, const Outline& outline, const TensorDef& tensor, size_t needed) {
  uint32_t filled = outline.filled_field(context.place);
  if (filled == kRawData) {
    if (tensor.dtype == DType::string) context.place.fail("strings in raw_data");
    check_raw_size(context, tensor, outline.raw.size(), needed);
    size_t ignored = 0;
    return tensor_of_bytes(context, tensor.dtype, tensor.shape, outline.raw, context.owner, ignored);
  }
  TypedField expected = typed_field(tensor.dtype, static_cast<size_t>(tensor.shape.num_elements()));
  if (filled && filled != expected.field)
    context.place.fail(std::string(name_of(tensor.dtype)) + " elements belong into " + field_name(expected.field) + ", not " +
                       field_name(filled));
  if (outline.payload[expected.field] < expected.num_values)
    context.place.fail(std::string(short_name_of(tensor.dtype)) + to_string(tensor.shape) + " needs " +
                       std::to_string(expected.num_values) + " values, there are at most " +
                       std::to_string(outline.payload[expected.field]));
  // Packed floats in a single part have the format of raw_data.
  if (outline.num_pieces == 1 && needed > 0 && outline.packed.size() == needed) {
    size_t ignored = 0;
    return tensor_of_bytes(context, tensor.dtype, tensor.shape, outline.packed, context.owner, ignored);
  }
  Tensor value(tensor.dtype, tensor.shape);
  Decoder decoder(context, value, expected.num_values);
  while (reader.next())
    if (reader.field() == expected.field) decoder.field(reader);
  decoder.finish();
  return value;
}

void check_dims(const ParseContext& context, const std::vector<int64_t>& dims) {
  for (int64_t dim : dims)
    if (dim < 0) context.place.fail("a negative dimension, " + std::to_string(dim));
  if (dims.size() > static_cast<size_t>(kMaxRank))
    context.place.fail(ErrorCode::not_implemented,
                       "a rank of " + std::to_string(dims.size()) + "; at most " + std::to_string(kMaxRank) + " is supported");
}

// Returns the tensor with which the caller replaces an initializer; null if there is none.
const Tensor* given_value(const ParseContext& context, const TensorDef& tensor) {
  const auto found = context.options.external_values.find(tensor.name);
  if (found == context.options.external_values.end() || !context.in_constant) return nullptr;
  const Tensor& value = found->second;
  if (value.dtype() != tensor.dtype)
    context.place.fail(ErrorCode::invalid_argument, "Replacement tensor's data type does not match: it is " +
                                                        std::string(name_of(value.dtype())) + ", not " +
                                                        std::string(name_of(tensor.dtype)));
  if (value.shape() != tensor.shape)
    context.place.fail(ErrorCode::invalid_argument, "Replacement tensor's dimensions do not match: they are " + to_string(value.shape()) +
                                                        ", not " + to_string(tensor.shape));
  return &value;
}

}  // namespace

Tensor tensor_of_bytes(const ParseContext& context, DType dtype, const Shape& shape, std::string_view bytes,
                       const std::shared_ptr<Storage>& owner, size_t& copied_bytes) {
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  bool normalize = dtype == DType::boolean && !are_booleans(bytes);
  bool aligned = reinterpret_cast<uintptr_t>(data) % natural_alignment(dtype) == 0;
  size_t enough = aligned ? context.options.min_in_place_bytes : context.options.min_unaligned_bytes;
  if (owner && !normalize && !bytes.empty() && bytes.size() >= enough && (aligned || context.in_constant))
    return Tensor(dtype, shape, owner, static_cast<size_t>(data - owner->data()));
  copied_bytes += bytes.size();
  if (context.options.share && context.in_constant && !normalize && bytes.size() >= kWorthSharing)
    return Tensor(dtype, shape, shared_copy({data, bytes.size()}));
  Tensor tensor(dtype, shape);
  if (!bytes.empty()) std::memcpy(tensor.raw(), data, bytes.size());
  if (normalize) std::for_each(tensor.raw(), tensor.raw() + bytes.size(), [](std::byte& b) { b = std::byte{b != std::byte{0}}; });
  return tensor;
}

namespace {

template <typename T>
void widen(TensorDef& indices) {
  indices.dtype = DType::int64;
  if (!indices.value.defined()) return;  // the indices are external, and were not requested
  Tensor wide(DType::int64, indices.shape);
  std::copy_n(indices.value.data<T>(), indices.value.num_elements(), wide.data<int64_t>());
  indices.value = wide;
}

}  // namespace

void settle_sparse(const ParseContext& context, SparseTensorDef& sparse) {
  const Place& place = context.place;
  switch (sparse.indices.dtype) {  // ONNX Runtime writes the narrowest integers that can represent the indices
    case DType::int8: widen<int8_t>(sparse.indices); break;
    case DType::int16: widen<int16_t>(sparse.indices); break;
    case DType::int32: widen<int32_t>(sparse.indices); break;
    default: break;
  }
  check_dims(context, sparse.dims);
  if (sparse.dims.empty()) place.fail("a sparse tensor without dimensions");
  int64_t num_elements = Shape(sparse.dims).num_elements();
  auto rank = static_cast<int64_t>(sparse.dims.size());
  const Shape& shape = sparse.indices.shape;
  if (sparse.values.shape.rank() != 1)
    place.fail("the values of a sparse tensor have the shape " + to_string(sparse.values.shape) + ", not [nnz]");
  int64_t nnz = sparse.values.shape[0];
  if (sparse.indices.dtype != DType::int64)
    place.fail("the indices of a sparse tensor are " + std::string(name_of(sparse.indices.dtype)) + ", not int64");
  if (!(shape == Shape{nnz} || shape == Shape{nnz, rank}))
    place.fail("the indices of a sparse tensor with " + std::to_string(nnz) + " values and rank " + std::to_string(rank) +
               " have the shape " + to_string(shape) + ", not [nnz] or [nnz, rank]");
  if (!sparse.indices.value.defined()) return;  // the indices are external, and were not requested
  if (num_elements == 0 && nnz > 0) place.fail(std::to_string(nnz) + " values in a sparse tensor of no elements");
  const auto* index = sparse.indices.value.data<int64_t>();
  std::vector<int64_t> places(static_cast<size_t>(nnz));
  for (int64_t i = 0; i < nnz; ++i) {
    int64_t linear = shape.rank() == 1 ? index[i] : 0;
    for (int64_t axis = 0; shape.rank() == 2 && axis < rank; ++axis) {
      int64_t at = index[i * rank + axis], extent = sparse.dims[static_cast<size_t>(axis)];
      if (at < 0 || at >= extent)
        place.fail("index " + std::to_string(i) + " is " + std::to_string(at) + " on axis " + std::to_string(axis) + " of extent " +
                   std::to_string(extent));
      linear = linear * extent + at;
    }
    if (linear < 0 || linear >= num_elements)
      place.fail("index " + std::to_string(i) + " is " + std::to_string(linear) + " of " + std::to_string(num_elements) + " elements");
    places[static_cast<size_t>(i)] = linear;
  }
  // ONNX requires ascending indices. But onnxruntime accepts any order, and models rely on that. No index may occur twice.
  std::sort(places.begin(), places.end());
  auto twice = std::adjacent_find(places.begin(), places.end());
  if (twice != places.end()) place.fail("a sparse tensor has two values for its element " + std::to_string(*twice));
}

size_t settle_type(const ParseContext& context, int32_t data_type, const std::vector<int64_t>& dims, TensorDef& out) {
  out.dtype = parse_dtype(context, data_type);
  if (out.dtype == DType::undefined) context.place.fail("a tensor without an element type");
  check_dims(context, dims);
  out.shape = Shape(dims);
  const size_t needed = size_bytes(out.dtype, out.shape.num_elements());
  if (needed > context.options.max_tensor_bytes)
    context.place.fail(ErrorCode::resource_exhausted, std::string(short_name_of(out.dtype)) + to_string(out.shape) + " takes " +
                                                          std::to_string(needed) + " bytes, more than max_tensor_bytes, " +
                                                          std::to_string(context.options.max_tensor_bytes));
  return needed;
}

void check_raw_size(const ParseContext& context, const TensorDef& tensor, size_t size, size_t needed) {
  if (size != needed)
    context.place.fail("has " + std::to_string(size) + " bytes of raw_data, " + std::string(short_name_of(tensor.dtype)) +
                       to_string(tensor.shape) + " needs " + std::to_string(needed));
}

void parse_tensor(ParseContext& context, WireReader reader, TensorDef& out) {
  out = TensorDef();
  Outline outline = read_outline(context, reader, out);
  placed(context, [&] {
    const size_t needed = settle_type(context, outline.data_type, outline.dims, out);
    out.is_external = outline.is_external;
    if (!out.is_external)
      out.value = read_value(context, reader, outline, out, needed);
    else if (const Tensor* given = given_value(context, out))
      out.value = *given, out.is_external = false;
    else if (context.options.load_external)
      out.value = read_external(context, out, needed);
  });
}

void parse_initializer(ParseContext& context, WireReader reader, TensorDef& out) {
  context.in_constant = true;  // need not be reset after an error, because reading then ends
  parse_tensor(context, reader, out);
  context.in_constant = false;
}

void parse_sparse_tensor(ParseContext& context, WireReader reader, SparseTensorDef& out) {
  out = SparseTensorDef();
  while (reader.next()) {
    if (reader.field() == 1 || reader.field() == 2) {
      context.count_message();
      Place::Step step(context.place, reader.field() == 1 ? "values" : "indices");
      parse_tensor(context, reader.message(), reader.field() == 1 ? out.values : out.indices);
    } else if (reader.field() == 3) {
      reader.each_varint([&](uint64_t dim) { out.dims.push_back(static_cast<int64_t>(dim)); });
    }
  }
  placed(context, [&] { settle_sparse(context, out); });
}

}  // namespace treadle::onnx
