#!/bin/sh
# Nothing is started or restarted: the stores have to be named first, and a drop may be going on.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
case "$1:$2" in
configure: | 1:) # a first installation, of dpkg and of rpm
	cat <<'TEXT'
dropctl: name the stores in /etc/dropctl/redis-url and /etc/dropctl/database-url, then
  dropctl migrate up --help
  dropctl doctor
  systemctl enable --now dropctl-serve dropctl-worker dropctl-reconcile.timer
TEXT
	;;
configure:* | 2:) # an upgrade
	echo "dropctl: services go on with the old version until: systemctl restart dropctl-serve dropctl-worker"
	;;
esac
