cmake_minimum_required(VERSION 3.25)

# Only a device touches the memory of a tensor. Outside core/device no file of core makes a pointer of a tensor's
# `data`, reads its elements without asking where they are, or copies from or to it. core/bench and transports' own
# buffers have no tensors, and core/conformance runs kernels on host memory of its own. The device `unmapped` of
# tests/support checks the same at run time, for all that its tests run.

file(GLOB_RECURSE files "${SOURCE}/core/*.h" "${SOURCE}/core/*.cpp")
list(FILTER files EXCLUDE REGEX "/core/(device|bench|conformance)/")
set(patterns
  "_cast<[^>]*[*]( const)?>[(][^()]*[.]data[)]"
  "mem(cpy|move|set|cmp)[(].*[.]data[^(a-z_]"
  "[*][a-z_.]*(view|tensor)[a-z_]*[.](data|address_of)"
  "has_non_finite"
  "(read|write)_element(s)?[(]([a-z_.]*executor_?[.]|[a-z_]*[.](state|input|output)[(])")
set(found "")
foreach(file IN LISTS files)
  foreach(pattern IN LISTS patterns)
    file(STRINGS "${file}" lines REGEX "${pattern}")
    foreach(line IN LISTS lines)
      string(APPEND found "${file}: ${line}\n")
    endforeach()
  endforeach()
endforeach()

# Lines that the patterns are meant to find.
set(examples
  "auto* row = static_cast<std::int32_t*>(inputs.data)"
  "std::memcpy(static_cast<std::byte*>(part.data) + at, from, bytes)"
  "std::memset(view.data, 0, bytes)"
  "const float first = *view.data"
  "if (device::has_non_finite(executor.state(id))) {"
  "return device::read_element(executor_.state(id), 0)")
foreach(example IN LISTS examples)
  set(matches FALSE)
  foreach(pattern IN LISTS patterns)
    if(example MATCHES "${pattern}")
      set(matches TRUE)
    endif()
  endforeach()
  if(NOT matches)
    message(FATAL_ERROR "no pattern finds '${example}'")
  endif()
endforeach()

list(LENGTH files count)
if(count LESS 100)
  message(FATAL_ERROR "${count} files: this test does not see what it is to check")
endif()
if(found)
  message(FATAL_ERROR "these use a tensor's memory without its device:\n${found}")
endif()
message(STATUS "none of ${count} files uses a tensor's memory without its device")
