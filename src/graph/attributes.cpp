#include "graph/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "core/base/utf8.h"
#include "treadle/error.h"

namespace treadle {

const Attribute* Attributes::find(std::string_view name) const {
  for (const auto& [key, value] : items_)
    if (key == name) return &value;
  return nullptr;
}

void Attributes::set(std::string_view name, Attribute value) {
  for (auto& [key, old] : items_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  items_.emplace_back(std::string(name), std::move(value));
}

void Attributes::erase(std::string_view name) {
  std::erase_if(items_, [&](const auto& item) { return item.first == name; });
}

template <typename T>
const T* Attributes::typed(std::string_view name) const {
  const Attribute* attribute = find(name);
  if (!attribute) return nullptr;
  if (const T* value = std::get_if<T>(attribute)) return value;
  throw Error(ErrorCode::invalid_model,
              fmt::format("attribute \"{}\" has another type than the operator's: {}", name, to_string(*attribute)));
}

int64_t Attributes::get_int(std::string_view name, int64_t otherwise) const {
  const auto* value = typed<int64_t>(name);
  return value ? *value : otherwise;
}

float Attributes::get_float(std::string_view name, float otherwise) const {
  const auto* value = typed<float>(name);
  return value ? *value : otherwise;
}

std::string_view Attributes::get_string(std::string_view name, std::string_view otherwise) const {
  const auto* value = typed<std::string>(name);
  return value ? std::string_view(*value) : otherwise;
}

const std::vector<int64_t>& Attributes::get_ints(std::string_view name) const {
  static const std::vector<int64_t> none;
  const auto* value = typed<std::vector<int64_t>>(name);
  return value ? *value : none;
}

const std::vector<float>& Attributes::get_floats(std::string_view name) const {
  static const std::vector<float> none;
  const auto* value = typed<std::vector<float>>(name);
  return value ? *value : none;
}

const std::vector<std::string>& Attributes::get_strings(std::string_view name) const {
  static const std::vector<std::string> none;
  const auto* value = typed<std::vector<std::string>>(name);
  return value ? *value : none;
}

const Tensor& Attributes::get_tensor(std::string_view name) const {
  const auto* value = typed<Datum>(name);
  if (!value) throw Error(ErrorCode::invalid_model, fmt::format("the attribute \"{}\" is missing", name));
  return value->tensor();
}

bool equal(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.raw() == b.raw() || a.num_elements() == 0) return true;
  if (a.dtype() == DType::string)
    return std::equal(a.span<std::string>().begin(), a.span<std::string>().end(), b.span<std::string>().begin());
  return a.is_contiguous() && b.is_contiguous() && std::memcmp(a.raw(), b.raw(), a.size_bytes()) == 0;
}

bool equal(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<Datum>(&a)) {
    const auto& y = std::get<Datum>(b);
    return x->is_tensor() && y.is_tensor() && equal(x->tensor(), y.tensor());
  }
  if (std::holds_alternative<std::vector<Datum>>(a)) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, std::vector<Datum>> || std::is_same_v<T, Datum>)
          return false;
        else
          return x == std::get<T>(b);
      },
      a);
}

bool Attributes::operator==(const Attributes& other) const {
  if (size() != other.size()) return false;
  return std::all_of(begin(), end(), [&](const auto& item) {
    const Attribute* found = other.find(item.first);
    return found && equal(item.second, *found);
  });
}

std::string to_string(const Attribute& attribute) {
  struct Printer {
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(float value) const { return fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return "\"" + printable(value) + "\""; }
    std::string operator()(const Datum& value) const { return describe(value); }
    std::string operator()(const Type& value) const { return to_string(value); }
    std::string operator()(const std::vector<int64_t>& values) const { return fmt::format("[{}]", fmt::join(values, ",")); }
    std::string operator()(const std::vector<float>& values) const {
      if (values.size() > 8) return fmt::format("[{} floats]", values.size());
      return fmt::format("[{}]", fmt::join(values, ","));
    }
    std::string operator()(const std::vector<std::string>& values) const {
      if (values.size() > 8) return fmt::format("[{} strings]", values.size());
      return printable(fmt::format("[\"{}\"]", fmt::join(values, "\",\"")));
    }
    std::string operator()(const std::vector<Datum>& values) const { return fmt::format("[{} tensors]", values.size()); }
    std::string operator()(const std::vector<Type>& values) const { return fmt::format("[{} types]", values.size()); }
  };
  return std::visit(Printer{}, attribute);
}

}  // namespace treadle
