// Files of compiled models: a header, a description, and blocks of elements that are used where they are mapped.
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

/// The library's version and format, and what the optimiser and the packers ask of the processor: files of another one are not used.
std::string machine_identity();

/// True if the file begins as a compiled model does; false if it cannot be read.
bool is_compiled(const std::string& path);

/// Writes the graph of a program, with what its kernels have packed. The file is complete or absent, and others may read or write the same
/// one.
/// @param key        of the model and the options that it was made of; empty: none.
/// @param interface  kept for the reader.
/// @return the file's size in bytes.
/// @throws Error(not_implemented) if the program holds what a file cannot; Error(io_error).
size_t write(const std::string& path, const exec::Program& program, const std::string& key, std::span<const std::byte> interface);

/// A mapped file whose header and description are whole and fit this machine. The blocks have not been looked at.
class File {
 public:
  /// @throws Error(not_found, io_error); Error(invalid_model) for anything that write() does not make; Error(not_implemented) for a file of
  /// another version or processor.
  explicit File(const std::string& path);

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }
  std::span<const std::byte> interface() const { return interface_; }
  size_t size_bytes() const { return storage_->size_bytes(); }
  size_t num_blocks() const { return blocks_.size(); }
  /// A graph of its own for every caller; constants and packed states are the file's memory.
  LoadedGraph read() const;
  /// Reads every block. @throws Error(invalid_model) naming the first that differs from its checksum.
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
