#include "train/data/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/checked.h"
#include "core/base/json_depth.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using nlohmann::json;

constexpr size_t kMaxHeaderBytes = 100'000'000;  // the limit of Hugging Face's own reader
constexpr size_t kLengthBytes = 8;

constexpr std::pair<std::string_view, DType> kSafetensorsDTypes[] = {
    {"F32", DType::float32},
    {"F64", DType::float64},
    {"F16", DType::float16},
    {"BF16", DType::bfloat16},
    {"I8", DType::int8},
    {"I16", DType::int16},
    {"I32", DType::int32},
    {"I64", DType::int64},
    {"U8", DType::uint8},
    {"U16", DType::uint16},
    {"U32", DType::uint32},
    {"U64", DType::uint64},
    {"BOOL", DType::boolean},
    {"F8_E4M3", DType::float8e4m3fn},
    {"F8_E5M2", DType::float8e5m2},
};

[[noreturn]] void throw_broken(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::invalid_model, fmt::format("{}: {}", where, what));
}

std::string_view name_in_file(DType dtype) {
  for (const auto& [name, each] : kSafetensorsDTypes)
    if (each == dtype) return name;
  throw Error(ErrorCode::not_implemented, fmt::format("safetensors files have no {}", name_of(dtype)));
}

// Parses the header. Refuses duplicate names, because the JSON parser would silently keep only the last of them.
json parse_header(std::string_view text, const std::string& where) {
  if (!is_shallow_json(text)) throw_broken(where, "the header has lists in lists too deep");
  std::set<std::string> names;
  auto each = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second)
      throw_broken(where, fmt::format("the header names \"{}\" twice", parsed.get<std::string>()));
    return true;
  };
  try {
    json header = json::parse(text, each);
    if (!header.is_object()) throw_broken(where, "the header is no JSON object");
    return header;
  } catch (const json::parse_error& error) {  // the error's message is not passed on, because it quotes input bytes that may not be UTF-8
    throw_broken(where, fmt::format("the header is no JSON at byte {}", error.byte));
  } catch (const json::exception&) {
    throw_broken(where, "the header is no JSON: it has a number beyond all limits");
  }
}

struct Entry {
  std::string name;
  DType dtype = DType::undefined;
  Shape shape;
  size_t begin = 0, end = 0;
};

size_t unsigned_number(const json& number, const std::string& where, const std::string& what) {
  if (!number.is_number_unsigned()) throw_broken(where, fmt::format("{} is {}, which is no unsigned integer", what, number.dump()));
  return number.get<size_t>();
}

Entry parse_entry(const std::string& name, const json& given, const std::string& where) {
  const std::string what = fmt::format("tensor \"{}\"", name);
  if (!given.is_object() || given.size() != 3 || !given.contains("dtype") || !given.contains("shape") || !given.contains("data_offsets"))
    throw_broken(where, fmt::format("{} has not just dtype, shape and data_offsets", what));
  const json &dtype = given["dtype"], &shape = given["shape"], &offsets = given["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || !offsets.is_array() || offsets.size() != 2)
    throw_broken(where, fmt::format("{}: dtype is text, shape a list, data_offsets two numbers", what));
  Entry entry{.name = name};
  for (const auto& [known, each] : kSafetensorsDTypes)
    if (dtype.get<std::string>() == known) entry.dtype = each;
  if (entry.dtype == DType::undefined)
    throw Error(ErrorCode::not_implemented, fmt::format("{}: {} has the dtype {}", where, what, dtype.dump()));
  if (shape.size() > static_cast<size_t>(kMaxRank)) throw_broken(where, fmt::format("{} has more than {} extents", what, kMaxRank));
  for (const json& extent : shape) {
    const size_t value = unsigned_number(extent, where, what + ": an extent");
    if (value > static_cast<size_t>(INT64_MAX)) throw_broken(where, fmt::format("{} has the extent {}", what, value));
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  entry.begin = unsigned_number(offsets[0], where, what + ": an offset"),
  entry.end = unsigned_number(offsets[1], where, what + ": an offset");
  const size_t expected = size_bytes(entry.dtype, entry.shape.num_elements());
  if (entry.end < entry.begin || entry.end - entry.begin != expected)
    throw_broken(where, fmt::format("{} takes {} bytes, its offsets are {} and {}", what, expected, entry.begin, entry.end));
  return entry;
}

void check_order(std::vector<Entry>& entries, size_t data_bytes, const std::string& where) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  size_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at)
      throw_broken(where, fmt::format("tensor \"{}\" begins at {}, the one before it ends at {}", entry.name, entry.begin, at));
    at = entry.end;
  }
  if (at != data_bytes) throw_broken(where, fmt::format("the tensors take {} bytes, the file has {}", at, data_bytes));
}

}  // namespace

Safetensors parse_safetensors(const std::shared_ptr<Storage>& bytes, const std::string& where) {
  if (bytes->size_bytes() < kLengthBytes) throw_broken(where, "too short for a safetensors file");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes->data()[i]) << (8 * i);
  if (length > kMaxHeaderBytes || length > bytes->size_bytes() - kLengthBytes)
    throw_broken(where, fmt::format("no safetensors file, or one that is cut off: the header would take {} bytes", length));
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()) + kLengthBytes, length);
  if (text.empty() || text[0] != '{') throw_broken(where, "no safetensors file: the header does not begin with {");
  const json header = parse_header(text, where);
  Safetensors made{.data_offset = kLengthBytes + length};
  std::vector<Entry> entries;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(name, entry, where));
      continue;
    }
    if (!entry.is_object()) throw_broken(where, "__metadata__ is no object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) throw_broken(where, fmt::format("the metadata \"{}\" is no text", key));
      made.metadata.emplace_back(key, value.get<std::string>());
    }
  }
  check_order(entries, bytes->size_bytes() - made.data_offset, where);
  for (const Entry& entry : entries) {
    const size_t offset = made.data_offset + entry.begin, width = std::max<size_t>(bits_of(entry.dtype) / 8, 1);
    if (reinterpret_cast<uintptr_t>(bytes->data() + offset) % width == 0) {
      made.tensors.emplace(entry.name, Tensor(entry.dtype, entry.shape, bytes, offset));
    } else {
      Tensor copy(entry.dtype, entry.shape);
      std::memcpy(copy.raw(), bytes->data() + offset, entry.end - entry.begin);
      made.tensors.emplace(entry.name, std::move(copy));
    }
  }
  return made;
}

std::vector<const NamedTensors::value_type*> tensors_in_file_order(const NamedTensors& tensors) {
  std::vector<const NamedTensors::value_type*> order;
  for (const auto& named : tensors) order.push_back(&named);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return bits_of(a->second.dtype()) > bits_of(b->second.dtype()); });
  return order;
}

std::string safetensors_header(const Metadata& metadata, const NamedTensors& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    nlohmann::ordered_json& entries = header["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) entries[key] = value;
  }
  size_t at = 0;
  for (const auto* named : tensors_in_file_order(tensors)) {
    const auto& [name, tensor] = *named;
    if (name == "__metadata__") throw Error(ErrorCode::invalid_argument, "a safetensors file has no tensor \"__metadata__\"");
    const size_t end = at + tensor.size_bytes();
    header[name] = {{"dtype", name_in_file(tensor.dtype())}, {"shape", tensor.shape().dims()}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    throw Error(ErrorCode::invalid_argument, "names and metadata in safetensors files are UTF-8; one of these is not");
  }
  text.resize(align_up(kLengthBytes + text.size(), Storage::kAlignment) - kLengthBytes, ' ');
  std::string made(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) made[i] = static_cast<char>(text.size() >> (8 * i) & 0xFF);
  return made + text;
}

}  // namespace treadle::train
