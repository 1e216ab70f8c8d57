# Reads one command per line until the pipe closes, and then removes everything that the commands have named.
trap '' HUP INT QUIT TERM

# started prints the start time of a process, which distinguishes it from a later process with the same ID. Without
# /proc it prints nothing.
started() {
	IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
	set -- ${stat##*) }
	echo "${20}"
}

newline='
'
processes= directories= containers= networks=
while IFS=' ' read -r verb what; do
	case $verb in
	process) processes="$processes$what $(started "$what")$newline" ;;
	forget)
		kept=
		while IFS=' ' read -r pid since; do
			[ -z "$pid" ] || [ "$pid" = "$what" ] || kept="$kept$pid $since$newline"
		done <<-END
			$processes
		END
		processes=$kept
		;;
	directory) directories="$directories$what$newline" ;;
	container) containers="$containers$what$newline" ;;
	network) networks="$networks$what$newline" ;;
	dismiss) exit 0 ;;
	esac
done

while IFS=' ' read -r pid since; do
	[ -n "$pid" ] || continue
	# If the start time differs, the ID belongs to another process. If there is no process with the ID, other processes of
	# its group may still be running.
	now=$(started "$pid")
	[ -z "$now" ] || [ "$now" = "$since" ] || continue
	kill -s KILL -- "-$pid" 2>/dev/null
done <<END
$processes
END

# Docker may still be creating a container, and killed processes may still be writing files. So each removal is repeated
# until nothing is left, for at most ten seconds.
for attempt in 0 1 2 3 4 5 6 7 8 9; do
	left=
	while IFS= read -r name; do
		[ -n "$name" ] || continue
		docker rm --force --volumes "$name" </dev/null >/dev/null 2>&1
		# In the first attempts, a container that does not exist may still be created.
		[ "$attempt" -gt 2 ] && ! docker container inspect "$name" </dev/null >/dev/null 2>&1 || left=1
	done <<-END
		$containers
	END
	while IFS= read -r name; do
		[ -n "$name" ] || continue
		docker network rm "$name" </dev/null >/dev/null 2>&1
		[ "$attempt" -gt 2 ] && ! docker network inspect "$name" </dev/null >/dev/null 2>&1 || left=1
	done <<-END
		$networks
	END
	while IFS= read -r path; do
		[ -n "$path" ] || continue
		umount -l -- "$path" 2>/dev/null # in case a file system is mounted there
		rm -rf -- "$path" 2>/dev/null
		[ ! -e "$path" ] || left=1
	done <<-END
		$directories
	END
	[ -n "$left" ] || break
	sleep 1
done
