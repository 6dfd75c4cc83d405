// Parses ModelProto and FunctionProto, and provides the entry points for files and bytes.
#include "onnx/parse.h"

#include <cctype>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/files/file.h"
#include "core/files/shared_storage.h"
#include "onnx/parse_context.h"

namespace treadle::onnx {
namespace fs = std::filesystem;
namespace {

void parse_opset_import(ParseContext& context, WireReader reader, OpsetImport& out) {
  while (reader.next()) {
    if (reader.field() == 1) out.domain = reader.string();
    if (reader.field() == 2) out.version = reader.int64();
  }
  check_opset(context, out);
}

void parse_function(ParseContext& context, WireReader reader, FunctionDef& out) {
  while (reader.next()) {
    switch (reader.field()) {
      case 1: out.name = reader.string(); break;
      case 4: out.inputs.push_back(reader.string()); break;
      case 5: out.outputs.push_back(reader.string()); break;
      case 6: out.attributes.push_back(reader.string()); break;
      case 7: parse_element(context, reader, "node", out.nodes, parse_node); break;
      case 8: out.doc_string = reader.string(); break;
      case 9: parse_element(context, reader, "opset_import", out.opset_imports, parse_opset_import); break;
      case 10: out.domain = reader.string(); break;
      case 11: parse_element(context, reader, "attribute_proto", out.attribute_protos, parse_attribute); break;
      case 12: parse_element(context, reader, "value_info", out.value_info, parse_value_info); break;
      case 13: out.overload = reader.string(); break;
      case 14: parse_property(context, reader.message(), out.metadata_props); break;
      default: break;
    }
  }
}

/// Runs `parse`, and converts any exception to an Error.
template <typename Parse>
auto guarded(const ParseContext& context, Parse parse) {
  try {
    return parse();
  } catch (const std::bad_alloc&) {
    context.place.fail_for_memory();
  } catch (const std::length_error&) {
    context.place.fail_for_memory();
  }
}

std::string_view view_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

void check_model(const ParseContext& context, const ModelDef& model, bool has_graph) {
  if (model.ir_version > kMaxIrVersion)
    context.place.fail(ErrorCode::not_implemented, "IR version " + std::to_string(model.ir_version) + "; versions up to " +
                                                       std::to_string(kMaxIrVersion) + " are known");
  if (!has_graph) context.place.fail(Fault::Kind::no_graph, "no graph: not an ONNX model, or one that is cut off");
  if (model.ir_version < 1) context.place.fail(Fault::Kind::no_ir_version, "no IR version: not an ONNX model, or one that is cut off");
}

/// Parses a model in ONNX's or ONNX Runtime's format. @param is_named  true if the file has the extension of ONNX Runtime's format
ModelDef parse_with(ParseContext& context, std::span<const std::byte> bytes, bool is_named = false) {
  using Format = ReadOptions::Format;
  return guarded(context, [&] {
    ModelDef model;
    const Format format = context.options.format;
    if (format == Format::ort || (format == Format::any && (is_named || is_ort_model(view_of(bytes))))) {
      parse_ort_model(context, view_of(bytes), model);
      check_model(context, model, true);
    } else {
      parse_model(context, WireReader(view_of(bytes), context.place), model);
    }
    return model;
  });
}

}  // namespace

void check_opset(const ParseContext& context, const OpsetImport& opset) {
  // Rejects versions that do not fit 32 bits, as all later code stores opsets in 32 bits.
  if (opset.version != static_cast<int32_t>(opset.version)) context.place.fail("an opset version of " + std::to_string(opset.version));
}

void parse_model(ParseContext& context, WireReader reader, ModelDef& out) {
  bool has_graph = false;
  while (reader.next()) {
    switch (reader.field()) {
      case 1: out.ir_version = reader.int64(); break;
      case 2: out.producer_name = reader.string(); break;
      case 3: out.producer_version = reader.string(); break;
      case 4: out.domain = reader.string(); break;
      case 5: out.model_version = reader.int64(); break;
      case 6: out.doc_string = reader.string(); break;
      case 7: {
        has_graph = true;
        Place::Step step(context.place, "graph");
        parse_graph(context, reader.message(), out.graph);
        break;
      }
      case 8: parse_element(context, reader, "opset_import", out.opset_imports, parse_opset_import); break;
      case 14: parse_property(context, reader.message(), out.metadata_props); break;
      case 20: out.training_info.emplace_back(reader.bytes()); break;
      case 25: parse_element(context, reader, "functions", out.functions, parse_function); break;
      case 26: out.configuration.emplace_back(reader.bytes()); break;
      default: break;
    }
  }
  check_model(context, out, has_graph);
}

bool is_ort_model(std::string_view bytes) {
  // An ONNX file whose producer is named "ORTM" also has this identifier. But it begins with the IR version and the name, and its first
  // bytes, read as an offset, would be 68 MB.
  return bytes.size() >= 8 && bytes.substr(4, 4) == "ORTM" && !(bytes[0] == '\x08' && bytes[2] == '\x12');
}

bool has_ort_extension(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".ort";
}

ModelDef parse_model_bytes(std::span<const std::byte> bytes, std::shared_ptr<Storage> owner, const fs::path& model_dir,
                           const ReadOptions& options) {
  if (owner && !bytes.empty() && (bytes.data() < owner->data() || bytes.data() + bytes.size() > owner->data() + owner->size_bytes()))
    throw Error(ErrorCode::invalid_argument, "the bytes of the model do not lie within their owner");
  ParseContext context{options, std::move(owner), ExternalFiles(model_dir, {}, options.use_mmap, options.share), {}};
  for (const auto& [location, contents] : options.external_files) context.external.add(location, contents);
  return parse_with(context, bytes);
}

ModelDef parse_model_file(const std::string& path, const ReadOptions& options) {
  auto storage = options.use_mmap ? map_file(path) : read_file(path);
  if (options.share && !options.use_mmap) storage = share_storage(std::move(storage));
  fs::path folder = fs::path(path).parent_path();
  std::error_code failure;
  fs::path real = fs::canonical(path, failure);
  std::vector<fs::path> allowed;
  if (!failure) allowed.push_back(real.parent_path());
  ParseContext context{
      options, storage, ExternalFiles(folder.empty() ? fs::path(".") : folder, std::move(allowed), options.use_mmap, options.share), {}};
  for (const auto& [location, contents] : options.external_files) context.external.add(location, contents);
  context.place.set_source(in_quotes(path));
  ModelDef model = parse_with(context, {storage->data(), storage->size_bytes()}, has_ort_extension(path));
  drop_mapped_pages(storage->data(),
                    storage->size_bytes());  // drops the file's pages: small tensors were copied, and packing reads the large ones again
  return model;
}

TensorDef parse_tensor_bytes(std::span<const std::byte> bytes, const ReadOptions& options) {
  ParseContext context{options, nullptr, ExternalFiles({}, {}, false, false), {}};
  return guarded(context, [&] {
    TensorDef tensor;
    Place::Step step(context.place, "tensor");
    parse_tensor(context, WireReader(view_of(bytes), context.place), tensor);
    return tensor;
  });
}

}  // namespace treadle::onnx
