// ONNX Runtime's adapter files: a flat buffer with the identifier "TORT" and this schema.
//
//     table Parameter { name: string; dims: [int64]; data_type: int32; raw_data: [uint8]; }    // data_type: ONNX's number
//     table Adapter { format_version, adapter_version, model_version: int32; parameters: [Parameter]; }
#include "treadle/adapter.h"

#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>

#include <cstring>

#include "core/base/utf8.h"
#include "core/files/file.h"
#include "treadle/error.h"

namespace treadle {
namespace {

namespace fb = flatbuffers;

constexpr const char* kIdentifier = "TORT";

// Returns the offset of field `i` in a table's vtable; fields are numbered as in the schema.
constexpr fb::voffset_t field(int i) { return static_cast<fb::voffset_t>(4 + 2 * i); }

struct ParameterTable : private fb::Table {
  const fb::String* name() const { return GetPointer<const fb::String*>(field(0)); }
  const fb::Vector<int64_t>* dims() const { return GetPointer<const fb::Vector<int64_t>*>(field(1)); }
  int32_t data_type() const { return GetField<int32_t>(field(2), 0); }
  const fb::Vector<uint8_t>* raw_data() const { return GetPointer<const fb::Vector<uint8_t>*>(field(3)); }
  bool Verify(fb::Verifier& verifier) const {
    return VerifyTableStart(verifier) && VerifyOffset(verifier, field(0)) && verifier.VerifyString(name()) &&
           VerifyOffset(verifier, field(1)) && verifier.VerifyVector(dims()) && VerifyField<int32_t>(verifier, field(2), sizeof(int32_t)) &&
           VerifyOffset(verifier, field(3)) && verifier.VerifyVector(raw_data()) && verifier.EndTable();
  }
};

struct AdapterTable : private fb::Table {
  using Parameters = fb::Vector<fb::Offset<ParameterTable>>;
  int32_t format_version() const { return GetField<int32_t>(field(0), 0); }
  int32_t adapter_version() const { return GetField<int32_t>(field(1), 0); }
  int32_t model_version() const { return GetField<int32_t>(field(2), 0); }
  const Parameters* parameters() const { return GetPointer<const Parameters*>(field(3)); }
  bool Verify(fb::Verifier& verifier) const {
    return VerifyTableStart(verifier) && VerifyField<int32_t>(verifier, field(0), sizeof(int32_t)) &&
           VerifyField<int32_t>(verifier, field(1), sizeof(int32_t)) && VerifyField<int32_t>(verifier, field(2), sizeof(int32_t)) &&
           VerifyOffset(verifier, field(3)) && verifier.VerifyVector(parameters()) && verifier.VerifyVectorOfTables(parameters()) &&
           verifier.EndTable();
  }
};

// True for dtypes that the format can store: neither strings nor types smaller than a byte.
bool is_storable(int32_t type) {
  const auto dtype = static_cast<DType>(type);
  return type > 0 && type < kNumDTypes && dtype != DType::string && !is_sub_byte(dtype);
}

Tensor tensor_from(const ParameterTable& table, const std::string& name) {
  if (!is_storable(table.data_type()))
    throw Error(ErrorCode::invalid_argument, fmt::format("the adapter's parameter \"{}\" has the data type {}", name, table.data_type()));
  const auto dtype = static_cast<DType>(table.data_type());
  std::vector<int64_t> dims;
  if (table.dims())
    for (int64_t extent : *table.dims()) dims.push_back(extent);
  const size_t given = table.raw_data() ? table.raw_data()->size() : 0;
  Shape shape;
  size_t expected = 0;
  try {
    shape = Shape(dims);
    expected = size_bytes(dtype, shape.num_elements());
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the adapter's parameter \"{}\" has extents that make no shape: {}", name, error.what()));
  }
  if (given != expected)
    throw Error(ErrorCode::invalid_argument, fmt::format("the adapter's parameter \"{}\", {}{}, has {} bytes, {} are expected", name,
                                                         name_of(dtype), to_string(shape), given, expected));
  Tensor made(dtype, shape);
  if (given > 0) std::memcpy(made.raw(), table.raw_data()->data(), given);
  return made;
}

}  // namespace

Adapter Adapter::from_bytes(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  fb::Verifier verifier(data, bytes.size());
  if (bytes.size() < fb::kFileIdentifierLength + sizeof(fb::uoffset_t) || !verifier.VerifyBuffer<AdapterTable>(kIdentifier))
    throw Error(ErrorCode::invalid_argument, "the bytes are no adapter (.onnx_adapter), or they are cut off");
  const auto& table = *fb::GetRoot<AdapterTable>(data);
  if (table.format_version() != Adapter::kFormatVersion)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the adapter has format version {}, {} is expected", table.format_version(), Adapter::kFormatVersion));
  Adapter made{.adapter_version = table.adapter_version(), .model_version = table.model_version(), .parameters = {}};
  if (!table.parameters()) return made;
  for (const ParameterTable* parameter : *table.parameters()) {
    const std::string name = parameter->name() ? parameter->name()->str() : "";
    if (name.empty()) throw Error(ErrorCode::invalid_argument, "the adapter has a parameter without a name");
    if (find_not_utf8(name) != std::string::npos)
      throw Error(ErrorCode::invalid_argument, fmt::format("the adapter's parameter \"{}\" has a name that is not UTF-8", name));
    if (!made.parameters.emplace(name, tensor_from(*parameter, name)).second)
      throw Error(ErrorCode::invalid_argument, fmt::format("the adapter has the parameter \"{}\" twice", name));
  }
  return made;
}

Adapter Adapter::load(const std::string& path) {
  const std::shared_ptr<Storage> bytes = read_file(path);
  try {
    return from_bytes({static_cast<const std::byte*>(bytes->data()), bytes->size_bytes()});
  } catch (Error& error) {
    error.add_context(fmt::format("in {}", path));
    throw;
  }
}

std::string Adapter::to_bytes() const {
  constexpr size_t kAlignment = 8;
  fb::FlatBufferBuilder builder;
  std::vector<fb::Offset<ParameterTable>> tables;
  for (const auto& [name, tensor] : parameters) {
    if (!is_storable(static_cast<int32_t>(tensor.dtype())))
      throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" is {}, which adapters do not have", name, name_of(tensor.dtype())));
    const Tensor plain = tensor.contiguous();
    builder.ForceVectorAlignment(plain.size_bytes(), 1, kAlignment);
    const auto data = builder.CreateVector(reinterpret_cast<const uint8_t*>(plain.raw()), plain.size_bytes());
    const auto dims = builder.CreateVector(std::vector<int64_t>(plain.shape().begin(), plain.shape().end()));
    const auto text = builder.CreateString(name);
    const fb::uoffset_t start = builder.StartTable();
    builder.AddOffset(field(0), text);
    builder.AddOffset(field(1), dims);
    builder.AddElement<int32_t>(field(2), static_cast<int32_t>(plain.dtype()), 0);
    builder.AddOffset(field(3), data);
    tables.emplace_back(builder.EndTable(start));
  }
  const auto all = builder.CreateVector(tables);
  const fb::uoffset_t start = builder.StartTable();
  builder.AddElement<int32_t>(field(0), Adapter::kFormatVersion, 0);
  builder.AddElement<int32_t>(field(1), adapter_version, 0);
  builder.AddElement<int32_t>(field(2), model_version, 0);
  builder.AddOffset(field(3), all);
  builder.Finish(fb::Offset<AdapterTable>(builder.EndTable(start)), kIdentifier);
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

void Adapter::save(const std::string& path) const {
  const std::string bytes = to_bytes();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(bytes)));
  file.commit();
}

}  // namespace treadle
