#pragma once

#include <filesystem>

#include "plugins/loader/elf.h"

namespace shardrun::plugins {

/// Checks the libraries that a library needs, directly or not, which the dynamic linker loads from folders that
/// libraries name. Each folder must be trusted like the library's own, and so must each library found there. Libraries
/// in the system's folders are trusted. Throws Error{plugin} with what is not trusted.
void require_trusted_needs(const std::filesystem::path& file, const ElfFile& library);

}  // namespace shardrun::plugins
