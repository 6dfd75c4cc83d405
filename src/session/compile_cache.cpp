#include "session/compile_cache.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/sha1.h"
#include "core/files/file.h"
#include "core/threads/thread_pool.h"
#include "exec/plan/plans.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle {
namespace {

// In bytes. Larger initializers are identified by their file's name, size and time, not by their elements.
constexpr size_t kLargeInitializer = 16'384;

// Identifies the build by size and time of the file that contains this code. Two builds of one version may optimize and pack differently.
std::string library_identity() {
  static const std::string identity = [] {
    Dl_info info{};
    struct stat file {};
    if (::dladdr(reinterpret_cast<const void*>(&library_identity), &info) == 0 || !info.dli_fname) return std::string("unknown");
    if (::stat(info.dli_fname, &file) != 0 && ::stat("/proc/self/exe", &file) != 0) return std::string("unknown");
    return fmt::format("{} {}.{}", file.st_size, file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
  }();
  return identity;
}

std::string range_text(const FileRange& range) {
  return fmt::format("file {} of {} bytes at {}: {} bytes from {}\n", range.inode, range.file_bytes, range.modified_ns, range.size_bytes,
                     range.offset);
}

void write_infos(compiled::Writer& out, const std::vector<ValueInfo>& infos) {
  out.count(infos.size());
  for (const ValueInfo& info : infos) {
    out.text(info.name);
    out.text(info.type);
    out.put(info.dtype);
    out.put<uint8_t>(info.has_rank);
    out.count(info.shape.size());
    for (const auto& extent : info.shape) {
      const auto* number = std::get_if<int64_t>(&extent);
      out.put<uint8_t>(number != nullptr);
      if (number)
        out.put(*number);
      else
        out.text(std::get<std::string>(extent));
    }
  }
}

std::vector<ValueInfo> read_infos(compiled::Reader& in) {
  std::vector<ValueInfo> infos(in.count(26));
  for (ValueInfo& info : infos) {
    info.name = in.name();
    info.type = in.name();
    info.dtype = in.pick(DType{kNumDTypes - 1});
    info.has_rank = in.flag();
    for (size_t i = in.count(9); i > 0; --i) {
      if (!in.flag())
        info.shape.emplace_back(in.name());
      else if (const auto extent = in.get<int64_t>(); extent >= 0)
        info.shape.emplace_back(extent);
      else
        compiled::Reader::fail("an extent is negative");
    }
    if ((!info.has_rank && !info.shape.empty()) || info.shape.size() > static_cast<size_t>(kMaxRank))
      compiled::Reader::fail("an input or an output is of no rank");
  }
  return infos;
}

// Returns the beginning of ONNX's text for a type of this kind.
std::string_view begin_of_text(Type::Kind kind) {
  switch (kind) {
    case Type::Kind::tensor: return "tensor(";
    case Type::Kind::sparse_tensor: return "sparse_tensor(";
    case Type::Kind::sequence: return "seq(";
    case Type::Kind::optional: return "optional(";
    case Type::Kind::map: return "map(";
    case Type::Kind::unknown: break;
  }
  return "";
}

// True if an input that the file declares as `told` may have this type in the graph. Options may have fixed extents that the model leaves
// open.
bool may_be(const ValueInfo& told, const Type& type) {
  if (!told.type.starts_with(begin_of_text(type.kind))) return false;
  if (type.dtype != DType::undefined && type.kind != Type::Kind::map && told.dtype != type.dtype) return false;
  if (!told.has_rank || !type.shape) return true;
  if (told.shape.size() != type.shape->size()) return false;
  for (size_t axis = 0; axis < told.shape.size(); ++axis) {
    const auto* extent = std::get_if<int64_t>(&told.shape[axis]);
    if (extent && !(*type.shape)[axis].is_const(*extent)) return false;
  }
  return true;
}

// Lists the text fields of the metadata, in the order in which they are stored.
template <typename M>
auto texts_of(M& metadata) {
  return std::array{&metadata.producer_name,     &metadata.producer_version, &metadata.graph_name,
                    &metadata.graph_description, &metadata.domain,           &metadata.description};
}

}  // namespace

std::string compiling_declines(const SessionOptions& options) {
  const SessionOptions defaults;
  for (const Option<SessionOptions>& row : session_option_table().rows())
    if (!row.never_compiled.empty() && row.is_set(options, defaults)) return std::string(row.never_compiled);
  return {};
}

// Returns the options that are part of the key. Every option is, unless its row in the table says otherwise: an unneeded option costs a
// compilation, but a missing one would load a wrong graph.
std::string graph_options(const SessionOptions& options) {
  const SessionOptions defaults;
  std::string text;
  for (const Option<SessionOptions>& row : session_option_table().rows()) {
    if (row.leaves_graph || !row.is_set(options, defaults)) continue;
    const std::string value = row.get(options);
    text += fmt::format("{}={}\n", row.name, row.content ? row.content(value) : value);
  }
  return text;
}

CacheKey cache_key(const Model::Impl& model, const SessionOptions& options) {
  std::error_code ignored;
  std::string place = std::filesystem::canonical(model.path, ignored).string();
  std::string text = fmt::format("{}\n{}\n{}\n{}", compiled::machine_identity(), library_identity(), graph_options(options), place);
  const std::shared_ptr<Storage> file = map_file(model.path);
  const auto whole = mapped_range(file->data(), file->size_bytes());
  if (whole) text += range_text(*whole);
  std::vector<std::pair<size_t, size_t>> large;  // ranges [begin, end) in the model's own file
  for (const onnx::TensorDef& initializer : model.def.graph.initializers) {
    const Tensor& value = initializer.value;
    if (!value.defined() || value.dtype() == DType::string) continue;
    const auto range = mapped_range(value.raw(), value.size_bytes());
    if (range && whole && range->inode == whole->inode && range->device == whole->device) {
      if (range->size_bytes >= kLargeInitializer && range->offset + range->size_bytes <= file->size_bytes())
        large.emplace_back(range->offset, range->offset + range->size_bytes);
    } else if (range) {
      text += range_text(*range);
    } else if (initializer.is_external) {
      text += sha1({value.raw(), value.size_bytes()});
    }
  }
  std::sort(large.begin(), large.end());
  large.emplace_back(file->size_bytes(), file->size_bytes());
  for (size_t at = 0; const auto& [begin, end] : large) {
    if (begin > at) text += sha1({file->data() + at, begin - at});
    at = std::max(at, end);
  }
  CacheKey key;
  key.digest = sha1({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  key.path = (std::filesystem::path(options.cache_dir) / (key.digest + ".treadle")).string();
  return key;
}

std::vector<std::byte> encode_interface(const std::vector<ValueInfo>& inputs, const std::vector<ValueInfo>& outputs,
                                        const std::vector<ValueInfo>& overridable, const ModelMetadata& metadata) {
  compiled::Writer out;
  for (const auto* infos : {&inputs, &outputs, &overridable}) write_infos(out, *infos);
  for (const std::string* text : texts_of(metadata)) out.text(*text);
  out.put(metadata.version);
  out.put(metadata.ir_version);
  out.count(metadata.opsets.size());
  for (const auto& [domain, version] : metadata.opsets) out.text(domain), out.put(version);
  out.count(metadata.custom.size());
  for (const auto& [key, text] : metadata.custom) out.text(key), out.text(text);
  return out.bytes();
}

std::shared_ptr<Model::Impl> open_compiled(const std::string& path) {
  auto model = std::make_shared<Model::Impl>();
  model->compiled = std::make_shared<const compiled::File>(path);
  model->path = path;
  compiled::Reader in(model->compiled->interface());
  for (auto* infos : {&model->inputs, &model->outputs, &model->overridable}) *infos = read_infos(in);
  ModelMetadata& metadata = model->metadata;
  for (std::string* text : texts_of(metadata)) *text = in.text();
  metadata.version = in.get<int64_t>();
  metadata.ir_version = in.get<int64_t>();
  for (size_t i = in.count(12); i > 0; --i) {
    const std::string domain = in.name();
    metadata.opsets[domain] = in.get<int>();
  }
  for (size_t i = in.count(16); i > 0; --i) {
    const std::string key = in.name();
    metadata.custom[key] = in.text();
  }
  if (!in.at_end()) compiled::Reader::fail("its interface is too long");
  return model;
}

void check_interface(const Model::Impl& model, const Graph& graph) {
  auto fail = [](std::string_view what, const std::string& name) {
    compiled::Reader::fail(fmt::format("the {} \"{}\" is not the one that the graph has", what, name));
  };
  if (model.inputs.size() != graph.inputs.size() || model.outputs.size() != graph.outputs.size())
    compiled::Reader::fail("the graph has another number of inputs or outputs than it tells of");
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const ValueInfo& told = model.inputs[i];
    const Value& input = graph.value(graph.inputs[i]);
    if (told.name != input.name || !may_be(told, input.type)) fail("input", told.name);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    if (model.outputs[i].name != graph.output_names[i]) fail("output", model.outputs[i].name);
}

void pack_for_file(exec::Plans& plans, ThreadPool* pool) {
  try {
    exec::Binding binding(plans);
    const std::vector<int64_t> ones(plans.program().graph().symbols().size(), 1);
    binding.bind(ones, pool ? pool->num_threads() : 1, /*bucketed=*/false, pool);
  } catch (const Error&) {
    // Not an error: binding may fail because extents of 1 are invalid for this model. Then the file stores plain weights, and the first run
    // packs them.
  }
}

}  // namespace treadle
