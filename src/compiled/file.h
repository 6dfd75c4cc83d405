// Files of compiled models: a header, a description, and blocks of elements that are used directly from the mapped file.
//
//   header       64 bytes: magic, format, bytes of the file and of the description, their checksums
//   description  identity, the model's interface, a table of blocks (offset, bytes, checksum), the graph with its packed states
//   blocks       each at a multiple of 64 bytes, large ones of a page
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiled/graph_stream.h"
#include "exec/program/program.h"
#include "treadle/tensor.h"

namespace treadle::compiled {

/// The library's version and format, and the processor's properties that the optimiser and the packing depend on. A file with another
/// identity is not used.
std::string machine_identity();

/// Returns true if the file starts with the magic bytes of a compiled model; false also if it cannot be read.
bool is_compiled(const std::string& path);

/// Writes a program's graph with the weights that its kernels have packed. The file appears
/// complete. If the function fails, there is no file, or the old one stays. Other processes may read or write it at the same time.
/// @param key        identifies the model and the options that the program was made of; empty: none.
/// @param interface  stored for the reader.
/// @return the file's size in bytes.
/// @throws Error(not_implemented) if the program contains something that a file cannot store; Error(io_error).
size_t write(const std::string& path, const exec::Program& program, const std::string& key, std::span<const std::byte> interface);

/// A mapped file. Its header and description have been verified to be intact and to match this machine; its blocks have not.
class File {
 public:
  /// @throws Error(not_found, io_error); Error(invalid_model) for a file that write() did not make; Error(not_implemented) for a file made
  /// by another version or for another processor.
  explicit File(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  std::span<const std::byte> interface() const { return interface_; }
  size_t size_bytes() const { return storage_->size_bytes(); }
  size_t num_blocks() const { return blocks_.size(); }
  /// Makes a new graph. Its constants and packed weights are views of the file's memory.
  LoadedGraph read() const;
  /// Checks every block.
  /// @throws Error(invalid_model) naming the first block whose checksum is wrong.
  void verify() const;

 private:
  std::string path_, key_;
  std::shared_ptr<Storage> storage_;
  std::vector<std::byte> interface_;
  std::vector<Tensor> blocks_;
  std::vector<uint64_t> checksums_;
  std::span<const std::byte> graph_;
};

}  // namespace treadle::compiled
