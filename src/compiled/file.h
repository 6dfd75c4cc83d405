// Files of compiled models: a header, a description, and blocks with elements of tensors, which are used in place from the mapped file.
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

/// Returns a text with the library's version, the file format, and the properties of the processor on which optimizer and weight packing
/// depend. A file with another identity is not used.
std::string machine_identity();

/// Returns true if the file starts with the magic bytes of a compiled model. Also returns false if the file cannot be read.
bool is_compiled(const std::string& path);

/// Writes a program's graph with the weights that its kernels have packed. The file is replaced atomically: if the function fails, an old
/// file stays unchanged, and other processes may read or write the file at the same time.
/// @param key        identifies the model and the options from which the program was made; may be empty.
/// @param interface  bytes that are stored for the reader (the model's inputs and outputs).
/// @return the file's size in bytes.
/// @throws Error(not_implemented) if the program contains something that such a file cannot store; Error(io_error).
size_t write(const std::string& path, const exec::Program& program, const std::string& key, std::span<const std::byte> interface);

/// A mapped file. The constructor checks that header and description are intact and match this machine, but does not check the blocks.
class File {
 public:
  /// Maps a file. @throws Error(not_found, io_error); Error(invalid_model) for a file that write() did not make; Error(not_implemented) for
  /// a file that another version made or that is for another processor.
  explicit File(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  std::span<const std::byte> interface() const { return interface_; }
  size_t size_bytes() const { return storage_->size_bytes(); }
  size_t num_blocks() const { return blocks_.size(); }
  /// Reads the graph, as a new object at each call. Its constants and packed weights are views of the mapped file.
  LoadedGraph read() const;
  /// Checks the checksums of all blocks.
  /// @throws Error(invalid_model) that names the first block whose checksum is wrong.
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
