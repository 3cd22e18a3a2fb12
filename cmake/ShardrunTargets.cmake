# How this project's targets are declared. Each folder names its own files; there is no list elsewhere.

add_library(shardrun_flags INTERFACE)
target_compile_options(shardrun_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX,C>:-Wall -Wextra -Wpedantic -Wconversion>
  # A designated initialiser that leaves members at their defaults says what it means.
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
# GCC 12 warns falsely about std::string's operator+ when it optimises (its bug 105651).
target_compile_options(shardrun_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
# GCC takes the files of a unity for headers, in which an anonymous namespace would be a mistake.
target_compile_options(shardrun_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-subobject-linkage>)
# GCC collects garbage whenever its heap has doubled. A unity allocates so much that this takes a tenth of its time,
# which a larger heap, given here in kB, saves.
target_compile_options(shardrun_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:--param=ggc-min-heapsize=400000>)
if(SHARDRUN_WERROR)
  target_compile_options(shardrun_flags INTERFACE -Werror)
endif()
# A folder or a target may turn optimisation off: with -O1, GCC takes 2.7 times as long for Catch2's assertions.
foreach(scope IN ITEMS DIRECTORY TARGET)
  define_property(${scope} PROPERTY SHARDRUN_UNOPTIMISED INHERITED)
endforeach()
target_compile_options(shardrun_flags INTERFACE $<$<BOOL:$<TARGET_PROPERTY:SHARDRUN_UNOPTIMISED>>:-O0>)
# A release build optimises only lightly what runs once, or so seldom that nobody waits for it. GCC 12 compiles it in
# 0.7 times the time that -O2 or -O3 take.
foreach(scope IN ITEMS DIRECTORY TARGET)
  define_property(${scope} PROPERTY SHARDRUN_RUNS_ONCE INHERITED)
endforeach()
target_compile_options(shardrun_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>,$<BOOL:$<TARGET_PROPERTY:SHARDRUN_RUNS_ONCE>>>:-O1>)
# Under a sanitizer only what computes is optimised: with -O1, Clang takes twice as long for the rest.
foreach(scope IN ITEMS DIRECTORY TARGET)
  define_property(${scope} PROPERTY SHARDRUN_COMPUTES INHERITED)
endforeach()
if(SHARDRUN_SANITIZE)
  target_compile_options(shardrun_flags INTERFACE $<$<BOOL:$<TARGET_PROPERTY:SHARDRUN_COMPUTES>>:-O1>)
  # These checks at each access or step of a pointer find hardly anything here that AddressSanitizer does not find. What
  # runs once and handles containers alone, and the plugins of tests, go without the check of alignment, too.
  set(unchecked "")
  set(unchecked_once "")
  if(SHARDRUN_SANITIZE MATCHES undefined AND NOT SHARDRUN_ALL_TESTS)
    set(unchecked -fno-sanitize=null,object-size,vptr,pointer-overflow)
    set(unchecked_once -fno-sanitize=alignment)
  endif()
  # Instrumenting a test's own files doubles the time that they take to compile. ASan and UBSan watch the product, which is
  # instrumented, as are tests of headers (OPTIMISED). ThreadSanitizer has to see both sides of a lock.
  if(SHARDRUN_SANITIZE MATCHES thread)
    set(instrumented 1)
  else()
    set(instrumented "$<NOT:$<BOOL:$<TARGET_PROPERTY:SHARDRUN_NOT_INSTRUMENTED>>>")
  endif()
  target_compile_options(shardrun_flags INTERFACE
    "$<${instrumented}:-fsanitize=${SHARDRUN_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all;${unchecked}>"
    "$<$<OR:$<BOOL:$<TARGET_PROPERTY:SHARDRUN_RUNS_ONCE>>,$<BOOL:$<TARGET_PROPERTY:SHARDRUN_UNOPTIMISED>>>:${unchecked_once}>")
  target_link_options(shardrun_flags INTERFACE -fsanitize=${SHARDRUN_SANITIZE})
  # Each compiler has its own way to say that a sanitizer is on, so the code asks for these names.
  if(SHARDRUN_SANITIZE MATCHES address)
    target_compile_definitions(shardrun_flags INTERFACE SHARDRUN_ASAN)
  elseif(SHARDRUN_SANITIZE MATCHES thread)
    target_compile_definitions(shardrun_flags INTERFACE SHARDRUN_TSAN)
  endif()
endif()

# Programs are linked as they are compiled: independent of their position.
include(CheckPIESupported)
check_pie_supported()
include(ShardrunHardening)
shardrun_harden(shardrun_flags INTERFACE)

# shardrun_add_module(NAME [REGISTERS] SOURCES file… DEPENDS target…)
#
# A folder of core as a static library `shardrun_NAME`. REGISTERS says that its files put things into a
# registry from static objects (ops, kernels, models): it is then linked whole, so that none is dropped.
function(shardrun_add_module name)
  cmake_parse_arguments(arg "REGISTERS" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(shardrun_${name} STATIC ${arg_SOURCES})
  target_include_directories(shardrun_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(shardrun_${name} PUBLIC ${arg_DEPENDS} PRIVATE shardrun_flags)
  if(arg_REGISTERS)
    add_library(shardrun_${name}_all INTERFACE)
    target_link_libraries(shardrun_${name}_all INTERFACE shardrun_${name})
    # Not $<LINK_LIBRARY:WHOLE_ARCHIVE,…>: CMake refuses it wherever another module names the library plainly.
    target_link_options(shardrun_${name}_all INTERFACE
      "LINKER:--whole-archive,$<TARGET_FILE:shardrun_${name}>,--no-whole-archive")
  endif()
endfunction()

# shardrun_add_test(NAME [OPTIMISED] SOURCES file… DEPENDS target… [LABELS label…])
#
# One Catch2 executable and one ctest entry; `tests/support` supplies main and the Catch2 include. `tests_LABEL` builds
# all tests of a label. OPTIMISED: what is tested is in headers, and is compiled as plugins compile it.
#
# Labels say where tests/run runs a test: `asan` and `tsan` under these sanitizers as well, `asan_only` not in the release
# build. `tests/run --all` runs all tests in the release build.
function(shardrun_add_test name)
  cmake_parse_arguments(arg "OPTIMISED" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  if("asan_only" IN_LIST arg_LABELS)
    list(APPEND arg_LABELS asan)
    if(NOT SHARDRUN_SANITIZED_TESTS)
      set_target_properties(test_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
  target_link_libraries(test_${name} PRIVATE ${arg_DEPENDS} shardrun_test_support shardrun_flags)
  if(arg_OPTIMISED)
    set_target_properties(test_${name} PROPERTIES SHARDRUN_UNOPTIMISED OFF)
  else()
    set_target_properties(test_${name} PROPERTIES SHARDRUN_NOT_INSTRUMENTED ON)
    target_precompile_headers(test_${name} REUSE_FROM shardrun_test_headers)
    # So that ccache sees which precompiled headers are used.
    target_compile_options(test_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  foreach(label IN LISTS arg_LABELS)
    shardrun_add_to_tests(${label} test_${name})
  endforeach()
endfunction()

# shardrun_add_to_tests(LABEL target…): what the tests of a label need built.
function(shardrun_add_to_tests label)
  if(NOT TARGET tests_${label})
    add_custom_target(tests_${label})
  endif()
  add_dependencies(tests_${label} ${ARGN})
endfunction()
