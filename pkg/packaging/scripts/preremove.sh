#!/bin/sh
# On removal, not on an upgrade, what runs ends in good order.
set -e
case "$1" in
remove | 0)
	if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now dropctl-reconcile.timer dropctl-serve.service dropctl-worker.service
	fi
	;;
esac
