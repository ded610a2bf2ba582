# SPDX-License-Identifier: GPL-2.0
#
# Targets for people. The kernel's side of the build is in arch/arm64/kvm/Makefile
# once integrated; each target here is one script, and takes its options in ARGS:
#   make bench ARGS="--quick --mode nvhe"

.DEFAULT_GOAL := help
.PHONY: help setup bench neighbour test kernel kunit selftests bugs matrix latency patches package integrate clean

series := $(if $(KERNEL),--kernel $(KERNEL))

help: ## this text
	@echo "usage: make TARGET [KERNEL=6.12] [ARGS=\"options of the script behind it\"]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12
	@echo
	@echo "Each script explains itself: scripts/bench-destroy.sh --help"
	@echo "Build output is in $${KVM_S2_CACHE:-$${XDG_CACHE_HOME:-~/.cache}/kvm_s2} (KVM_S2_CACHE moves it)."

setup: ## install what is missing; the others do it by themselves
	@scripts/setup.sh $(series) $(ARGS)

bench: ## the main job: upstream against ours, table, destroy.json, destroy.svg
	@scripts/bench-destroy.sh $(series) $(ARGS)

neighbour: ## the close of a small VM while a large one dies, upstream against ours
	@scripts/bench-neighbour.sh $(ARGS)

test: ## every check, from formatting to booted machines, in all three modes
	@scripts/test.sh $(series) $(ARGS)

kernel: ## build the kernel (ARGS="--kernel 6.12 --config debug"); ARCH=x86_64: sandbox's guest
	@$(if $(filter x86_64,$(ARCH)),rust/sandbox/guest/build.sh,scripts/kernel.sh $(series)) $(ARGS)

kunit: ## the component's KUnit tests in a booted kernel, in all three modes
	@scripts/kunit.sh $(series) $(ARGS)

selftests: ## the kselftest programs in a booted machine, in all three modes
	@scripts/selftests.sh $(series) $(ARGS)

bugs: ## makes mistakes on purpose, and shows which test notices each
	@scripts/test-bugs.sh $(ARGS)

matrix: ## every page size, preemption model and compiler, upstream against ours
	@scripts/matrix.sh $(series) $(ARGS)

latency: ## who waits while a stage-2 is destroyed, on Linux 6.12 without preemption
	@scripts/latency.sh $(ARGS)

patches: ## the change as git format-patch series, one for each kernel
	@scripts/patches.sh $(series) $(ARGS)

package: ## one archive for an arm64 host: static selftests, bench, instructions
	@scripts/package.sh $(ARGS)

integrate: ## put the component into your own kernel tree: KSRC=dir, ARGS=--revert
	@test -n "$(KSRC)" || { echo "name the tree: make integrate KSRC=~/linux" >&2; exit 2; }
	@scripts/integrate.sh $(ARGS) $(KSRC)

clean: ## remove build output and results; sources and tools stay
	@scripts/clean.sh $(ARGS)
