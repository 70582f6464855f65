# SPDX-License-Identifier: Apache-2.0
# A thin front of CMake: `make help` lists what there is.
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
CMAKE_FLAGS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

MAKEFLAGS += --no-print-directory

.PHONY: all configure deps test quick-test demo python install bench format clean help

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

deps:
	@scripts/deps.sh build

configure: deps
	@mkdir -p $(dir $(BUILD))
	@cmake -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || \
		{ cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

test:
	@scripts/test.sh

quick-test:
	@scripts/test.sh quick

demo: all
	@examples/demo.sh $(BUILD)

python: all
	@scripts/python.sh $(BUILD)

install: all
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) >/dev/null
	@test -n "$(DESTDIR)" || ldconfig 2>/dev/null || true
	@echo "installed to $(DESTDIR)$(PREFIX)"

bench: all
	@echo "$(BUILD)/tilewire bench all_reduce --ranks 2 --bytes 8388608 --peers"
	@echo "$(BUILD)/tilewire bench mm_all_reduce --ranks 2 --shape 1024,2048,4096 --explain"
	@echo "$(BUILD)/tilewire bench gemm --dtype bf16 --shape 1024,2048,4096"
	@echo "$(BUILD)/tilewire help bench        lists the rest"

format:
	@scripts/check_format.sh --fix

clean:
	rm -rf $(BUILD)

help:
	@echo "make             builds $(BUILD)/tilewire and $(BUILD)/libtilewire.so (installs missing packages if it may)"
	@echo "make demo        runs the fused operators on 2 ranks, example kernels on 4, and a script for PyTorch in .venv"
	@echo "make test        every check and test, with sanitizers; about half an hour on two cores"
	@echo "make quick-test  the tests on the plain build only"
	@echo "make python      prepares .venv with PyTorch and the package tilewire"
	@echo "make install     PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)"
	@echo "make bench       shows how to measure"
	@echo "make format      applies clang-format"
	@echo "make clean       removes $(BUILD)/"
