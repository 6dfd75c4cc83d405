#include "compiled/file.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>

#include "compiled/checksum.h"
#include "core/base/checked.h"
#include "core/base/cpu_info.h"
#include "core/files/file.h"
#include "kernels/gemm/gemm.h"

namespace treadle::compiled {
namespace {

constexpr uint32_t kFormat = 7;  // must be increased when the format or the kernels' packing changes
constexpr std::array<char, 8> kMagic = {'t', 'r', 'e', 'a', 'd', 'l', 'e', '\x01'};
constexpr size_t kPage = 4096, kLargeBlock = 65'536;

struct Header {
  std::array<char, 8> magic;
  uint32_t format, header_bytes;
  uint64_t file_bytes, description_bytes, graph_bytes;
  uint64_t description_checksum, reserved, checksum;  // checksum: of all fields before it
};
static_assert(sizeof(Header) == 64);

uint64_t checksum_of(const Header& header) { return checksum({reinterpret_cast<const std::byte*>(&header), offsetof(Header, checksum)}); }

size_t place(size_t at, size_t size_bytes) { return align_up(at, size_bytes >= kLargeBlock ? kPage : Storage::kAlignment); }

std::span<const std::byte> bytes_of(const Tensor& tensor) { return {tensor.raw(), tensor.size_bytes()}; }

}  // namespace

std::string machine_identity() {
  const CpuFeatures& f = cpu_info().features;
  std::string features;
  auto add = [&](bool has, const char* name) {
    if (has) features += std::string(" ") + name;
  };
  add(f.avx2, "avx2"), add(f.avx512, "avx512"), add(f.avx512_vnni, "avx512_vnni"), add(f.avx512_bf16, "avx512_bf16");
  add(f.avx512_fp16, "avx512_fp16"), add(f.avx_vnni, "avx_vnni"), add(f.amx_bf16, "amx_bf16"), add(f.amx_int8, "amx_int8");
  add(f.neon, "neon");
  // Identifies the vector width by the width of packed panels, because a build may not use all instruction sets of the processor.
  return fmt::format("treadle {}, format {}, vectors of {}, processor with{}", TREADLE_VERSION, kFormat,
                     kernels::packed_b_size<float>(1, 1), features.empty() ? " no extension" : features);
}

bool is_compiled(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (!file) return false;
  std::setvbuf(file, nullptr, _IONBF, 0);  // unbuffered, since this check of every loaded model needs only a few bytes
  std::array<char, kMagic.size()> begin{};
  const bool whole = std::fread(begin.data(), 1, begin.size(), file) == begin.size();
  std::fclose(file);
  return whole && begin == kMagic;
}

size_t write(const std::string& path, const exec::Program& program, const std::string& key, std::span<const std::byte> interface) {
  TensorList tensors;
  Writer graph;
  write_graph(graph, program, tensors);
  Writer front;
  front.text(machine_identity());
  front.text(key);
  front.text({reinterpret_cast<const char*>(interface.data()), interface.size()});
  front.count(tensors.tensors().size());
  // Computes the size of the description first, because it contains the offsets of the blocks, which follow it.
  const size_t table_bytes = tensors.tensors().size() * 3 * sizeof(uint64_t);
  const size_t description_bytes = front.bytes().size() + table_bytes + graph.bytes().size();
  size_t at = sizeof(Header) + description_bytes;
  std::vector<size_t> offsets;
  for (const Tensor& block : tensors.tensors()) {
    offsets.push_back(place(at, block.size_bytes()));
    at = offsets.back() + block.size_bytes();
    front.put<uint64_t>(offsets.back());
    front.put<uint64_t>(block.size_bytes());
    front.put(checksum(bytes_of(block)));
  }
  std::vector<std::byte> description = front.bytes();
  description.insert(description.end(), graph.bytes().begin(), graph.bytes().end());
  Header header{kMagic, kFormat, sizeof(Header), at, description.size(), graph.bytes().size(), checksum(description), 0, 0};
  header.checksum = checksum_of(header);

  AtomicFile file(path);
  file.write({reinterpret_cast<const std::byte*>(&header), sizeof(header)});
  file.write(description);
  for (size_t i = 0; i < offsets.size(); ++i) {
    file.write_zeros(offsets[i] - file.size_bytes());
    file.write(bytes_of(tensors.tensors()[i]));
  }
  file.commit();
  return at;
}

File::File(const std::string& path) : path_(path), storage_(map_file(path)) {
  auto fail = [&](std::string_view what) { throw Error(ErrorCode::invalid_model, fmt::format("\"{}\" {}", path, what)); };
  const std::span<const std::byte> all(storage_->data(), storage_->size_bytes());
  Header header{};
  if (all.size() < sizeof(Header)) fail("is no compiled model: it is too short");
  std::memcpy(&header, all.data(), sizeof(Header));
  if (header.magic != kMagic) fail("is no compiled model: it begins with other bytes");
  if (header.format != kFormat)
    throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" is a compiled model of format {}, this library reads {}; compile it again",
                                                        path, header.format, kFormat));
  if (header.checksum != checksum_of(header) || header.header_bytes != sizeof(Header)) fail("has a damaged header");
  if (header.file_bytes != all.size())
    fail(fmt::format("is cut off or has been appended to: {} bytes, {} expected", all.size(), header.file_bytes));
  if (header.description_bytes > all.size() - sizeof(Header) || header.graph_bytes > header.description_bytes) fail("has a damaged header");
  const auto description = all.subspan(sizeof(Header), header.description_bytes);
  if (checksum(description) != header.description_checksum) fail("is damaged: its description differs from its checksum");
  graph_ = description.last(header.graph_bytes);
  Reader in(description.first(header.description_bytes - header.graph_bytes));
  const std::string identity = in.text();
  if (identity != machine_identity())
    throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" was compiled by or for another one: {}; this is {}; compile it again", path,
                                                        identity, machine_identity()));
  key_ = in.bytes();
  const std::string interface = in.bytes();
  const auto* begin = reinterpret_cast<const std::byte*>(interface.data());
  interface_.assign(begin, begin + interface.size());
  const size_t num_blocks = in.count(3 * sizeof(uint64_t));
  for (size_t i = 0; i < num_blocks; ++i) {
    const auto offset = in.get<uint64_t>(), size = in.get<uint64_t>();
    if (offset > all.size() || size > all.size() - offset || offset % Storage::kAlignment != 0) fail("has a block outside of the file");
    blocks_.emplace_back(DType::uint8, Shape{static_cast<int64_t>(size)}, storage_, offset);
    checksums_.push_back(in.get<uint64_t>());
  }
  if (!in.at_end()) fail("is damaged: its description is too long");
}

LoadedGraph File::read() const {
  Reader in(graph_);
  LoadedGraph loaded = read_graph(in, blocks_);
  if (!in.at_end()) Reader::fail("its description is too long");
  return loaded;
}

void File::verify() const {
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (checksum(bytes_of(blocks_[i])) != checksums_[i])
      throw Error(ErrorCode::invalid_model,
                  fmt::format("\"{}\" is damaged: block {} of {} differs from its checksum", path_, i, blocks_.size()));
  read();
}

}  // namespace treadle::compiled
