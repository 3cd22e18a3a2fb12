#include "plugins/loader/library.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/base/error.h"

namespace shardrun::plugins {
namespace {

using Header = ElfW(Ehdr);

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "AArch64";
    case EM_386: return "i386";
    case EM_ARM: return "Arm";
    case EM_PPC64: return "PowerPC 64";
    case EM_RISCV: return "RISC-V";
    case EM_S390: return "S/390";
    default: return fmt::format("ELF machine {}", machine);
  }
}

std::string architecture(const Header& header) {
  return fmt::format("{} ({}-bit, {}-endian)", machine_name(header.e_machine),
                     header.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32,
                     header.e_ident[EI_DATA] == ELFDATA2LSB ? "little" : "big");
}

/// The header that a library must have: the running program's own.
Header own_header() {
  Header header{};
  std::ifstream program("/proc/self/exe", std::ios::binary);
  if (!program.read(reinterpret_cast<char*>(&header), sizeof(header))) {
    throw Error(ErrorCode::io, "cannot read the program's own header from /proc/self/exe");
  }
  return header;
}

}  // namespace

ElfFile::ElfFile(const std::filesystem::path& path, Symbols symbols) : path_(path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  bytes_.resize(std::filesystem::file_size(path));
  file.read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
  bytes_.resize(static_cast<std::size_t>(file.gcount()));
  check_header();
  read_segments();
  if (symbols == Symbols::read) {
    read_symbols();
  }
}

bool ElfFile::exports(std::string_view symbol) const { return symbols_.contains(symbol); }

std::vector<char> ElfFile::object(std::string_view symbol, std::size_t size) const {
  const auto found = symbols_.find(symbol);
  if (found == symbols_.end()) {
    fail(fmt::format("does not export {}", symbol));
  }
  const auto [address, found_size] = found->second;
  if (found_size < size) {
    fail(fmt::format("exports {} of {} bytes, expected at least {}", symbol, found_size, size));
  }
  for (const Segment& segment : segments_) {
    const std::uint64_t start = address - segment.address;
    if (address < segment.address || start > segment.memory_size || size > segment.memory_size - start) {
      continue;
    }
    std::vector<char> bytes(size, '\0');  // beyond file_size a segment is zeros
    const std::uint64_t stored = std::min<std::uint64_t>(size, segment.file_size - std::min(start, segment.file_size));
    std::copy_n(bytes_.data() + segment.offset + start, stored, bytes.data());
    return bytes;
  }
  fail(fmt::format("says that {} lies outside of what it loads", symbol));
}

std::uint64_t ElfFile::offset_of(std::uint64_t address) const {
  for (const Segment& segment : segments_) {
    if (address >= segment.address && address - segment.address < segment.file_size) {
      return segment.offset + (address - segment.address);
    }
  }
  fail(fmt::format("says that its text at {:#x} lies outside of what it loads", address));
}

std::vector<std::string> ElfFile::dynamic_texts(std::int64_t tag) const {
  std::vector<ElfW(Dyn)> entries;
  for (std::uint64_t at = 0; at + sizeof(ElfW(Dyn)) <= dynamic_.file_size; at += sizeof(ElfW(Dyn))) {
    entries.push_back(read<ElfW(Dyn)>(dynamic_.offset + at, "dynamic section"));
    if (entries.back().d_tag == DT_NULL) {
      break;
    }
  }
  const auto table = std::ranges::find(entries, ElfW(Sxword){DT_STRTAB}, &ElfW(Dyn)::d_tag);
  std::vector<std::string> texts;
  for (const ElfW(Dyn) & entry : entries) {
    if (entry.d_tag == tag && table != entries.end()) {
      const std::uint64_t begin = offset_of(table->d_un.d_ptr + entry.d_un.d_val);
      texts.emplace_back(bytes_.data() + begin, ::strnlen(bytes_.data() + begin, bytes_.size() - begin));
    }
  }
  return texts;
}

template <class T>
T ElfFile::read(std::uint64_t offset, std::string_view what) const {
  if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) {
    fail(fmt::format("is cut short: its {} should end at byte {}, but it has {} bytes", what, offset + sizeof(T),
                     bytes_.size()));
  }
  T value;
  std::memcpy(&value, bytes_.data() + offset, sizeof(T));
  return value;
}

void ElfFile::check_header() const {
  if (!std::string_view(bytes_.data(), bytes_.size()).starts_with(ELFMAG)) {
    fail("is no shared library: it does not begin with the ELF signature");
  }
  const Header header = read<Header>(0, "ELF header");
  const Header own = own_header();
  if (header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS] || header.e_ident[EI_DATA] != own.e_ident[EI_DATA] ||
      header.e_machine != own.e_machine) {
    fail(fmt::format("is built for {}, but this program for {}: build the plugin for this machine",
                     architecture(header), architecture(own)));
  }
  if (header.e_type != ET_DYN) {
    fail(fmt::format("is no shared library: its ELF type is {}, expected {}", header.e_type, ET_DYN));
  }
}

void ElfFile::read_segments() {
  const Header header = read<Header>(0, "ELF header");
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto program = read<ElfW(Phdr)>(header.e_phoff + i * sizeof(ElfW(Phdr)), "program headers");
    if (program.p_type == PT_DYNAMIC) {
      dynamic_ = {program.p_vaddr, program.p_offset, program.p_filesz, program.p_memsz};
    }
    if (program.p_type != PT_LOAD) {
      continue;
    }
    if (program.p_offset > bytes_.size() || program.p_filesz > bytes_.size() - program.p_offset) {
      fail(fmt::format("is cut short: a segment of {} bytes begins at byte {}, but it has {} bytes", program.p_filesz,
                       program.p_offset, bytes_.size()));
    }
    segments_.push_back({program.p_vaddr, program.p_offset, program.p_filesz, program.p_memsz});
  }
}

void ElfFile::read_symbols() {
  const Header header = read<Header>(0, "ELF header");
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto section = read<ElfW(Shdr)>(header.e_shoff + i * sizeof(ElfW(Shdr)), "section headers");
    if (section.sh_type != SHT_DYNSYM) {
      continue;
    }
    const auto names =
        read<ElfW(Shdr)>(header.e_shoff + std::uint64_t{section.sh_link} * sizeof(ElfW(Shdr)), "section headers");
    for (std::uint64_t j = 0; j < section.sh_size / sizeof(ElfW(Sym)); ++j) {
      const auto symbol = read<ElfW(Sym)>(section.sh_offset + j * sizeof(ElfW(Sym)), "symbol table");
      const std::uint64_t begin = names.sh_offset + symbol.st_name;
      if (symbol.st_shndx == SHN_UNDEF || begin >= bytes_.size()) {
        continue;
      }
      const char* name = bytes_.data() + begin;
      symbols_[std::string(name, ::strnlen(name, bytes_.size() - begin))] = {symbol.st_value, symbol.st_size};
    }
  }
}

void ElfFile::fail(std::string_view reason) const {
  throw Error(ErrorCode::plugin, fmt::format("{} {}", path_.string(), reason));
}

}  // namespace shardrun::plugins
