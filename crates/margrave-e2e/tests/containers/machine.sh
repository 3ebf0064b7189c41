# Becomes the first process of a machine of its own: what is on this one, seen through an overlay of which nothing is kept,
# with systemd that starts one service. Called in new namespaces of mounts, processes and cgroups.
#
#   machine.sh DIR AGENT DATA SOCKET UNIT DROP-IN
#
# DIR is an empty directory, AGENT the program, DATA its directory, SOCKET the engine's, UNIT and DROP-IN what is tested.
set -eu
dir=$1 agent=$2 data=$3 socket=$4 unit=$5 drop_in=$6

mount --make-rprivate /
# Not on the disk: what is above an overlay must not be a part of what is beneath it.
mount -t tmpfs machine "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay machine -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
root=$dir/root

# Nothing that this machine has switched on, and nothing that would change what both share.
for own in etc/systemd/system run tmp var/tmp var/log dev; do
  mkdir -p "$root/$own"
  mount -t tmpfs machine "$root/$own"
done
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t proc machine "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro machine "$root/sys"
mount -t cgroup2 machine "$root/sys/fs/cgroup"
mkdir -p "$root/var/lib/margrave-agent" "$root/run/lock"
mount --bind "$data" "$root/var/lib/margrave-agent"
touch "$root/usr/bin/margrave-agent" "$root/run/docker.sock"
mount --bind "$agent" "$root/usr/bin/margrave-agent"
mount --bind "$socket" "$root/run/docker.sock"

units=$root/etc/systemd/system
cp "$unit" "$units/margrave-agent.service"
mkdir "$units/margrave-agent.service.d"
cp "$drop_in" "$units/margrave-agent.service.d/test.conf"
ln -s /dev/null "$units/timers.target"
ln -s /dev/null "$units/docker.service"
ln -s /dev/null "$units/docker.socket"
ln -s /dev/null "$units/podman.socket"
printf '[Unit]\nRequires=margrave-agent.service\n' >"$units/machine.target"

mkdir "$root/old"
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin /lib/systemd/systemd --system --unit=machine.target --log-target=console
